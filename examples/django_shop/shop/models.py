from django.db import models


class Order(models.Model):
    customer = models.TextField()
    mailed = models.BooleanField(default=False)
