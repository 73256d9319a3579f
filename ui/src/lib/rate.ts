/** Starts per minute in the last bucket that is over; the very last one is not. */
export function currentRate(series: { started: number }[], bucketSeconds: number): number {
  return ((series.at(-2)?.started ?? 0) * 60) / bucketSeconds;
}
