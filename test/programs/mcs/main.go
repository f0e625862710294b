// Command mcs runs the conformance tests of the Multi-Cluster Services API, which are built from a checkout of
// kubernetes-sigs/mcs-api, against two devices of a lab, and prints how each ended. It is never shipped.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"rivulet/test/harness/lab"
)

// expectation is a test that fails by design.
type expectation struct {
	name   string
	reason string                    // of the failure, in a word or two
	is     func(message string) bool // reports whether it failed for the reason
}

// expected are the tests that fail by design; docs/design/services.md says why.
var expected = []expectation{
	{"A DNS query of the <service>.<ns>.svc.clusterset.local domain for a headless service should return the ready endpoint addresses of all the backing pods",
		"the addresses in the answer", func(m string) bool {
			return strings.Contains(m, "to have addresses") && strings.Contains(m, "Name:")
		}},
	// The importer's own export decides on the number of the port, so that the other number leads nowhere, and nothing is printed.
	{"Connectivity to exported services with same port name but different port numbers on each cluster should only route traffic to the cluster that exposes the port",
		"a port that leads nowhere", func(m string) bool {
			return strings.Contains(m, "<string>: \nto contain substring") || strings.Contains(m, "<string>: \n  to contain substring")
		}},
}

type options struct{ dir, rivulet, suite, images, focus string }

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "folder of the lab, on a real file system")
	flag.StringVar(&o.rivulet, "rivulet", "", "the binary to test")
	flag.StringVar(&o.suite, "suite", "", "the program of the tests")
	flag.StringVar(&o.images, "images", "", "archives of the images that the tests use, with commas")
	flag.StringVar(&o.focus, "focus", "", "only tests whose name matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "mcs: "+err.Error())
		os.Exit(1)
	}
}

// run leaves nothing behind, however it ends: files that are not the lab's own are in a folder of their own.
func run(ctx context.Context, o options) (err error) {
	work, err := os.MkdirTemp("", "mcs-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	tell := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	l, err := lab.Up(ctx, lab.Options{Dir: o.dir, Binary: o.rivulet, Devices: 2, Env: map[string][]string{"": {"RIVULET_SERVICES_IMPORT=all"}}, Tell: tell})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, lab.Down(ctx, o.dir))
	}()
	config := clientcmd.NewDefaultClientConfigLoadingRules()
	config.Precedence = nil
	merged, err := config.Load()
	if err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		d, err := l.Device(name)
		if err != nil {
			return err
		}
		if err := d.WaitPeered(ctx, 1); err != nil {
			return err
		}
		for archive := range strings.SplitSeq(o.images, ",") {
			if archive, err = filepath.Abs(archive); err != nil {
				return err
			}
			if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "/host"+archive); err != nil {
				return err
			}
		}
		own, err := clientcmd.LoadFromFile(d.Path("/var/lib/rivulet/kubeconfig"))
		if err != nil {
			return err
		}
		address, err := forward(ctx, d)
		if err != nil {
			return err
		}
		current := own.Contexts[own.CurrentContext]
		cluster := own.Clusters[current.Cluster]
		cluster.Server = "https://" + address
		merged.Clusters[name], merged.AuthInfos[name] = cluster, own.AuthInfos[current.AuthInfo]
		merged.Contexts[name] = current.DeepCopy()
		merged.Contexts[name].Cluster, merged.Contexts[name].AuthInfo = name, name
	}
	merged.CurrentContext = "a"
	file, report := filepath.Join(work, "kubeconfig"), filepath.Join(work, "report.json")
	if err := clientcmd.WriteToFile(*merged, file); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, o.suite, "--kubeconfig="+file, "--contexts=a,b", "--ginkgo.json-report="+report, "--ginkgo.focus="+o.focus, "--ginkgo.no-color", "--ginkgo.timeout=1h")
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, os.Stderr, os.Stderr
	failed := cmd.Run() // the report has which
	raw, err := os.ReadFile(report)
	if err != nil {
		return errors.Join(failed, err)
	}
	return judge(os.Stdout, raw, o.focus != "")
}

// forward serves a device's API server on a port of the loopback, and returns its address.
func forward(ctx context.Context, d *lab.Device) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := d.Dial(ctx, "tcp", "127.0.0.1:6443")
				if err != nil {
					return
				}
				defer to.Close()
				go func() { io.Copy(to, c); to.Close() }()
				io.Copy(c, to)
			}()
		}
	}()
	return l.Addr().String(), nil
}

// judge prints each test that ran with its labels and result. It returns an error if a test failed that is not expected
// to, if an expected one passed or, unless some were chosen, did not run, and if none passed.
func judge(w io.Writer, raw []byte, chosen bool) error {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			LeafNodeLabels                    []string
			ContainerHierarchyLabels          [][]string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(raw, &suites); err != nil {
		return err
	}
	var errs []error
	passed, failed, seen := 0, 0, map[string]bool{}
	for _, s := range suites {
		for _, r := range s.SpecReports {
			if r.State == "skipped" || r.LeafNodeType != "It" && r.State == "passed" {
				continue
			}
			name := strings.TrimSpace(strings.Join(r.ContainerHierarchyTexts, " ") + " " + r.LeafNodeText)
			at := slices.IndexFunc(expected, func(e expectation) bool { return strings.HasSuffix(name, e.name) })
			isExpected := r.LeafNodeType == "It" && at >= 0
			state := r.State
			switch {
			case isExpected && state == "failed" && expected[at].is(r.Failure.Message):
				state, seen[name] = "failed, as expected", true
			case isExpected:
				seen[name] = true
				if state == "failed" {
					errs = append(errs, fmt.Errorf("%s: failed for another reason than %s: %s", name, expected[at].reason, r.Failure.Message))
					break
				}
				errs = append(errs, fmt.Errorf("%s: %s, and was expected to fail: take it out of test/programs/mcs", name, state))
			case state != "passed":
				errs = append(errs, fmt.Errorf("%s %s: %s", cmp.Or(name, r.LeafNodeType), state, r.Failure.Message))
			}
			labels := slices.Concat(append(r.ContainerHierarchyLabels, r.LeafNodeLabels)...)
			fmt.Fprintf(w, "%-7s %s [%s]\n", state, cmp.Or(name, r.LeafNodeType), strings.Join(labels, ", "))
			if r.State == "passed" {
				passed++
				continue
			}
			failed++
			fmt.Fprintln(w, "        "+r.Failure.Message)
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", passed, failed)
	if !chosen && len(seen) < len(expected) {
		errs = append(errs, fmt.Errorf("of the tests that are expected to fail, %d ran of %d", len(seen), len(expected)))
	}
	if passed == 0 && len(seen) == 0 {
		errs = append(errs, errors.New("no test passed"))
	}
	return errors.Join(errs...)
}
