from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("customer", models.TextField()),
                ("mailed", models.BooleanField(default=False)),
            ],
        )
    ]
