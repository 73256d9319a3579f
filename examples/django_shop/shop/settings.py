import os

import django
from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "only for an example"
DEBUG = True
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_database = conninfo_to_dict(os.environ["HOURBELL_DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database["dbname"],
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
        "HOST": _database.get("host", ""),
        "PORT": _database.get("port", ""),
    }
}

INSTALLED_APPS = ["shop", "hourbell.contrib.django"]
if django.VERSION < (6,):
    INSTALLED_APPS += ["django_tasks"]  # the backport

TASKS = {"default": {"BACKEND": "hourbell.contrib.django.HourbellBackend"}}
