try:
    from django.tasks import task
except ModuleNotFoundError:  # Django 5
    from django_tasks import task

from hourbell import Retry
from shop.models import Order


@task(
    retry=Retry.delays(60, 300, 1800), timeout=30
)  # what Hourbell has beyond Django's own options
def send_confirmation(order_id):
    order = Order.objects.get(id=order_id)
    print(f"mail to {order.customer}: thank you for order {order_id}", flush=True)
    order.mailed = True
    order.save()
