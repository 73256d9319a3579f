"""What only looks: lists, explanations, overviews, forecasts, health."""
