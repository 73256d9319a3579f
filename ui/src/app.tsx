// The frame of all pages: the caller, the route, and lazy loading.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Component, lazy, Suspense, useEffect, type ReactNode } from "react";
import { Route, Router, Switch, useLocation } from "wouter";

import { ApiProblem, get } from "./api/client";
import { isPageHeld, MeContext } from "./api/hooks";
import type { Me } from "./api/types";
import { mayLeave } from "./lib/leave";
import { connect, disconnect } from "./lib/live";
import { useSettings } from "./lib/settings";
import { decoded } from "./lib/url";
import { Button, Empty, Failure, Loading, PageHead } from "./parts/basics";
import { Toasts } from "./parts/overlays";
import { Overview } from "./pages/overview";
import { Shell } from "./shell/shell";
import { SignIn } from "./shell/sign-in";

const Jobs = lazy(() => import("./pages/jobs").then((page) => ({ default: page.Jobs })));
const JobPage = lazy(() => import("./pages/job").then((page) => ({ default: page.JobPage })));
const JobForm = lazy(() => import("./pages/job-form").then((page) => ({ default: page.JobForm })));
const Executions = lazy(() => import("./pages/executions").then((page) => ({ default: page.Executions })));
const ExecutionPage = lazy(() => import("./pages/execution").then((page) => ({ default: page.ExecutionPage })));
const DeadLetters = lazy(() => import("./pages/dead-letters").then((page) => ({ default: page.DeadLetters })));
const ForecastPage = lazy(() => import("./pages/forecast").then((page) => ({ default: page.ForecastPage })));
const Tenants = lazy(() => import("./pages/tenants").then((page) => ({ default: page.Tenants })));
const TenantPage = lazy(() => import("./pages/tenants").then((page) => ({ default: page.TenantPage })));
const Queues = lazy(() => import("./pages/queues").then((page) => ({ default: page.Queues })));
const QueuePage = lazy(() => import("./pages/queues").then((page) => ({ default: page.QueuePage })));
const Targets = lazy(() => import("./pages/queues").then((page) => ({ default: page.Targets })));
const Fleet = lazy(() => import("./pages/fleet").then((page) => ({ default: page.Fleet })));
const WorkerPage = lazy(() => import("./pages/fleet").then((page) => ({ default: page.WorkerPage })));
const Operations = lazy(() => import("./pages/operations").then((page) => ({ default: page.Operations })));
const OperationPage = lazy(() => import("./pages/operations").then((page) => ({ default: page.OperationPage })));
const Monitors = lazy(() => import("./pages/admin").then((page) => ({ default: page.Monitors })));
const Audit = lazy(() => import("./pages/admin").then((page) => ({ default: page.Audit })));
const Secrets = lazy(() => import("./pages/admin").then((page) => ({ default: page.Secrets })));
const Keys = lazy(() => import("./pages/admin").then((page) => ({ default: page.Keys })));
const SettingsPage = lazy(() => import("./pages/settings").then((page) => ({ default: page.SettingsPage })));
const Tasks = lazy(() => import("./pages/tasks").then((page) => ({ default: page.Tasks })));
const Groups = lazy(() => import("./pages/groups").then((page) => ({ default: page.Groups })));
const GroupPage = lazy(() => import("./pages/groups").then((page) => ({ default: page.GroupPage })));
const Calendars = lazy(() => import("./pages/groups").then((page) => ({ default: page.Calendars })));
const More = lazy(() => import("./pages/settings").then((page) => ({ default: page.More })));
const Reference = lazy(() => import("./pages/reference").then((page) => ({ default: page.Reference })));

export function App() {
  return (
    <Router aroundNav={(navigate, to, options) => mayLeave() && navigate(to, options)}>
      <Frame />
    </Router>
  );
}

function Frame() {
  const client = useQueryClient();
  const { live } = useSettings();
  const [path] = useLocation();
  const me = useQuery<Me, ApiProblem>({
    queryKey: ["/api/v1/me"],
    queryFn: ({ signal }) => get<Me>("/api/v1/me", {}, { signal }),
    retry: false,
    refetchInterval: (query) => (query.state.error && query.state.error.status !== 401 ? 3000 : false),
  });
  const signedIn = me.data !== undefined && me.error?.status !== 401;

  useEffect(() => {
    if (signedIn) connect(client);
    else disconnect();
  }, [client, signedIn, live]);

  if (me.error?.status === 401 && !isPageHeld()) return <SignIn signedIn={() => client.resetQueries()} />;
  if (!me.data) {
    if (!me.error) return <Loading rows={3} />;
    return (
      <main>
        <Failure problem={me.error} again={() => void me.refetch()} />
      </main>
    );
  }
  return (
    <MeContext value={me.data}>
      <Shell lost={me.error}>
        <Broken key={path}>
          <Suspense fallback={<Loading rows={10} />}>
            <Pages />
          </Suspense>
        </Broken>
      </Shell>
      <Toasts />
    </MeContext>
  );
}

/** Catches a page that fails, or whose code is no longer on the server after an upgrade. The rest of the frame stays. */
class Broken extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };
  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }
  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <>
        <PageHead title="This page cannot be shown" />
        <Empty action={<Button onClick={() => location.reload()}>Reload</Button>}>The server may have been upgraded since you opened the dashboard. If this still happens after reloading, please report it:  {String(this.state.error)}</Empty>
      </>
    );
  }
}

function Pages() {
  return (
    <Switch>
      <Route path="/" component={Overview} />
      <Route path="/sign-in" component={Overview} />
      <Route path="/jobs" component={Jobs} />
      <Route path="/jobs/new">{() => <JobForm />}</Route>
      <Route path="/jobs/:job/edit">{({ job }) => <JobForm key={job} job={job} />}</Route>
      <Route path="/jobs/:job">{({ job }) => <JobPage key={job} id={job} />}</Route>
      <Route path="/executions" component={Executions} />
      <Route path="/executions/:execution">{({ execution }) => <ExecutionPage key={execution} id={execution} />}</Route>
      <Route path="/dead-letters" component={DeadLetters} />
      <Route path="/dead-letters/:execution">{({ execution }) => <ExecutionPage key={execution} id={execution} />}</Route>
      <Route path="/forecast" component={ForecastPage} />
      <Route path="/tenants" component={Tenants} />
      <Route path="/tenants/:name">{({ name }) => <TenantPage key={name} name={decoded(name)} />}</Route>
      <Route path="/queues" component={Queues} />
      <Route path="/queues/:name">{({ name }) => <QueuePage key={name} name={decoded(name)} />}</Route>
      <Route path="/targets" component={Targets} />
      <Route path="/fleet" component={Fleet} />
      <Route path="/fleet/:session">{({ session }) => <WorkerPage key={session} id={session} />}</Route>
      <Route path="/operations" component={Operations} />
      <Route path="/operations/:operation">{({ operation }) => <OperationPage key={operation} id={operation} />}</Route>
      <Route path="/tasks" component={Tasks} />
      <Route path="/groups" component={Groups} />
      <Route path="/groups/:group">{({ group }) => <GroupPage key={group} id={group} />}</Route>
      <Route path="/calendars" component={Calendars} />
      <Route path="/monitors" component={Monitors} />
      <Route path="/audit" component={Audit} />
      <Route path="/secrets" component={Secrets} />
      <Route path="/keys" component={Keys} />
      <Route path="/settings" component={SettingsPage} />
      <Route path="/more" component={More} />
      <Route path="/reference" component={Reference} />
      <Route>
        <PageHead title="Page not found" />
        <Empty>There is no page at this address. Use the navigation, or search for a job.</Empty>
      </Route>
    </Switch>
  );
}
