"""Read-only operations: lists, explanations, overviews, forecasts, health."""
