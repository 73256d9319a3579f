import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const server = process.env.HOURBELL_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "dist",
    assetsDir: "assets",
    assetsInlineLimit: 0, // the policy of the page allows no data: URLs for scripts and styles
    modulePreload: { polyfill: false }, // its polyfill would be an inline script
    sourcemap: false,
    target: "es2022",
  },
  server: { proxy: { "/api": server, "/schema": server } },
  test: { environment: "node", include: ["src/**/*.test.ts"], isolate: false }, // pure functions: one worker runs all files
});
