// Package k3s is the only package that imports k3s and Kubernetes itself. It runs the part of the engine that argv[0]
// names: the k3s server, containerd, kubectl, ctr or crictl, or the control plane of a virtual cluster. It reads the
// command line and returns only if argv[0] is none of these.
//
// k3s ends its process on errors and owns global flags and signal handlers, so it never runs inside the supervisor: see
// package engine.
package k3s

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	_ "time/tzdata" // CronJobs have time zones; a virtual cluster cannot read the system's

	"github.com/k3s-io/k3s/pkg/cli/agent"
	"github.com/k3s-io/k3s/pkg/cli/cmds"
	"github.com/k3s-io/k3s/pkg/cli/server"
	"github.com/k3s-io/k3s/pkg/containerd"
	"github.com/k3s-io/k3s/pkg/ctr"
	"github.com/k3s-io/k3s/pkg/daemons/executor"
	"github.com/k3s-io/k3s/pkg/kubectl"
	"github.com/k3s-io/k3s/pkg/version"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"sigs.k8s.io/cri-tools/cmd/crictl"

	// How the cluster is kept on the card.
	// What Kubernetes' main programs link beside their packages.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/engine/images"
	_ "rivulet/appliance/engine/kine"
	"rivulet/appliance/machine/memory"
)

// EngineName is the argv[0] of the k3s server.
const EngineName = "rivulet-engine"

// Tools are the embedded tools by their argv[0].
var Tools = map[string]func(){
	"containerd": containerd.Main,
	"kubectl":    kubectl.Main,
	"ctr":        ctr.Main,
	"crictl":     crictl.Main,
}

// Dispatch runs the part of the engine that argv[0] names and reports whether there was one. Most parts end the process
// themselves. Control planes of virtual clusters serve own.
func Dispatch(own OwnAPI) bool {
	// k3s refuses to start without the Go version that built Kubernetes.
	version.UpstreamGolang = runtime.Version()

	name := filepath.Base(os.Args[0])
	if tool, ok := Tools[name]; ok {
		os.Args[0] = name
		if name == "containerd" {
			go memory.KeepTrimmed(context.Background())
			images.RefuseOrders()
		}
		tool()
		return true
	}
	if name == controlplane.Name {
		controlplane.Main(func(ctx context.Context, p controlplane.Plane) error { return runPlane(ctx, p, own) })
	}
	if name != EngineName {
		return false
	}
	serve()
	return true
}

func serve() {
	all := newParts() // in this process tree
	executor.Set(all)
	go memory.KeepTrimmed(context.Background())
	app := cmds.NewApp()
	app.DisableSliceFlagSeparator = true
	app.Commands = []*cli.Command{
		cmds.NewServerCommand(func(c *cli.Context) error {
			// They were read, and are secret: programs that the engine starts would inherit them.
			os.Unsetenv("K3S_DATASTORE_ENDPOINT")
			os.Unsetenv("K3S_TOKEN")
			all.server = true
			return server.Run(c)
		}),
		cmds.NewAgentCommand(agent.Run),
	}
	if err := app.Run(os.Args); err != nil && !errors.Is(err, context.Canceled) {
		logrus.Fatalf("engine: %v", err)
	}
}
