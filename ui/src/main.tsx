import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { ApiProblem } from "./api/client";
import { worthRepeating } from "./api/hooks";
import { App } from "./app";
import { watchVisibility } from "./lib/live";
import { watch } from "./lib/settings";
import "./styles/tokens.css";
import "./styles/base.css";

/** The next read reveals that a session has ended; `useAct` does the same for writes. */
function onProblem(error: unknown): void {
  if (error instanceof ApiProblem && error.status === 401) void client.invalidateQueries({ queryKey: ["/api/v1/me"] });
}

const client: QueryClient = new QueryClient({
  queryCache: new QueryCache({ onError: (error, query) => query.queryKey[0] !== "/api/v1/me" && onProblem(error) }),
  defaultOptions: { queries: { retry: worthRepeating, staleTime: 1000, networkMode: "always" } },
});

watch();
watchVisibility();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <App />
      </QueryClientProvider>
    </StrictMode>,
  );
}
