from django.db import transaction
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import send_confirmation


class PaymentFailed(Exception): ...


@csrf_exempt
def orders(request):
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=request.POST["customer"])
            mail = send_confirmation.enqueue(order.id)
            if request.POST.get("card") == "declined":
                raise PaymentFailed  # rolls back the order, and the mail with it
    except PaymentFailed:
        return JsonResponse({"error": "The card was declined."}, status=402)
    return JsonResponse({"order": order.id, "mail": mail.id}, status=201)


def order(request, order_id):
    found = get_object_or_404(Order, id=order_id)
    return JsonResponse({"customer": found.customer, "mailed": found.mailed})
