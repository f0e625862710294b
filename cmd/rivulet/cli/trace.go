package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/trace"
)

// traceLimit is longer than the supervisor takes.
const traceLimit = 40 * time.Second

func newTrace(c *common) *cobra.Command {
	var q trace.Request
	cmd := &cobra.Command{
		Use:   "trace POD|SERVICE",
		Short: "follow a connection to a Service or a pod hop by hop, with a verdict, a time and a cure",
		Long: "The object is a name, NAMESPACE/NAME, svc/NAME or pod/NAME, with :PORT if it has several. A Service comes before a pod of the same name.\n" +
			"Hops are name, service, endpoints, rules, translation, tunnel, path, policy and container; what each checks: rivulet docs trace. Exit code 0: nothing fails; 1: a hop fails; 2: bad flags.",
		Args: takes(1, "trace takes one Service or pod; see: rivulet kubectl get services,pods -A, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Object = args[0]
			path := trace.Path + "?" + url.Values{"object": {q.Object}, "namespace": {q.Namespace}, "from": {q.From}}.Encode()
			end := busy("following " + args[0])
			var r trace.Report
			err := api.CallWithin(cmd.Context(), traceLimit, c.dirs.Run, http.MethodGet, path, nil, &r)
			end()
			if err != nil {
				return err
			}
			err = result(cmd, c, r, printTrace)
			if err == nil && r.Verdict == trace.Fails {
				err = &exitError{code: exitFailed}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&q.Namespace, "namespace", "n", "", "namespace of the object")
	cmd.Flags().StringVar(&q.From, "from", "", "pod that connects, as POD or NAMESPACE/POD (default this device)")
	return withOutput(c, cmd)
}

func printTrace(out io.Writer, r trace.Report) error {
	from := r.From
	if from == "" {
		from = "this device"
	}
	what := r.Kind + " " + r.Namespace + "/" + r.Name
	if r.Port != "" {
		what += ", port " + r.Port
	}
	fmt.Fprintf(out, "%s, from %s\n\n", what, from)
	endpoint := ""
	for i, h := range r.Hops {
		if h.Endpoint+h.Pod != endpoint {
			endpoint = h.Endpoint + h.Pod
			fmt.Fprintln(out, strings.TrimSpace(h.Pod+" "+h.Endpoint))
		}
		took := ""
		if h.Took > 0 {
			took = roundTo(h.Took).String()
		}
		fmt.Fprintf(out, "%-7s %-11s %8s  %s\n", strings.ToUpper(string(h.Verdict)), h.Name, took, oneLine(h.Text))
		if h.Cure != "" && (i == r.Begin || r.Begin < 0) {
			fmt.Fprintf(out, "        cure: %s\n", oneLine(h.Cure))
		}
	}
	if h, found := r.Cause(); found && h.Verdict == trace.Fails {
		fmt.Fprintf(out, "\nIt breaks at %s.\n", h.Name)
	} else if found {
		fmt.Fprintf(out, "\nIt works; %s is slow.\n", h.Name)
	} else if r.Verdict == trace.Unknown {
		fmt.Fprintln(out, "\nNothing fails; what is unknown could not be checked.")
	} else {
		fmt.Fprintln(out, "\nThe whole way works.")
	}
	return nil
}

// roundTo is a time with three digits.
func roundTo(d time.Duration) time.Duration {
	for unit := time.Microsecond; unit < time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second / 10)
}
