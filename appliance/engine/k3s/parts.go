package k3s

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/k3s/pkg/cli/cmds"
	"github.com/k3s-io/k3s/pkg/daemons/config"
	"github.com/k3s-io/k3s/pkg/executor/embed"
	"github.com/k3s-io/k3s/pkg/signals"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxyapp "k8s.io/kubernetes/cmd/kube-proxy/app"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
)

// parts are k3s's, all in this process tree, except for the API server, the pod network, and the moment at which the
// others start: k3s checks every 2 s whether the API server is ready, and everything waits for that.
type parts struct {
	*embed.Embedded
	server bool          // not a worker's agent
	ready  chan struct{} // closed once the API server is ready
	once   sync.Once
}

func newParts() *parts { return &parts{Embedded: &embed.Embedded{}, ready: make(chan struct{})} }

// pollReady is the interval of checks of this process's API server.
const pollReady = 20 * time.Millisecond

// Bootstrap prepares a node, and on a server the door before requests of others. A worker's API server is in another
// machine, which k3s checks.
func (p *parts) Bootstrap(ctx context.Context, node *config.Node, cfg cmds.Agent) error {
	if p.server {
		if err := guard(ctx, node, filepath.Dir(cfg.DataDir)); err != nil {
			return err
		}
	}
	if err := p.Embedded.Bootstrap(ctx, node, cfg); err != nil {
		return err
	}
	theirs := p.Embedded.APIServerReadyChan()
	go func() {
		select {
		case <-theirs:
			p.begin()
		case <-p.ready:
		}
	}()
	return nil
}

func (p *parts) begin() { p.once.Do(func() { close(p.ready) }) }

// await closes ready once the API server of this process is.
func (p *parts) await(ctx context.Context, loopback *rest.Config) {
	client, err := kubernetes.NewForConfig(loopback)
	if err != nil {
		return // k3s's own check decides
	}
	if wait.PollUntilContextCancel(ctx, pollReady, true, func(ctx context.Context) (bool, error) {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	}) == nil {
		p.begin()
	}
}

// APIServerReadyChan returns the channel that is closed once the API server is ready.
func (p *parts) APIServerReadyChan() <-chan struct{} { return p.ready }

// Kubelet runs the kubelet once the API server is ready, until the process ends.
func (p *parts) Kubelet(ctx context.Context, args []string) error {
	return p.command(ctx, kubeletapp.NewKubeletCommand(context.Background()), args)
}

// KubeProxy runs kube-proxy once the API server is ready, until ctx ends.
func (p *parts) KubeProxy(ctx context.Context, args []string) error {
	return p.command(ctx, proxyapp.NewProxyCommand(), args)
}

// ControllerManager runs the controllers once the API server is ready, until ctx ends; one of them is in the API server
// (foreignPolicies).
func (p *parts) ControllerManager(ctx context.Context, args []string) error {
	args = slices.Clone(args)
	for i, a := range args {
		if strings.HasPrefix(a, "--controllers=") {
			args[i] += "," + withoutTypeChecks
		}
	}
	return p.command(ctx, cmapp.NewControllerManagerCommand(), args)
}

// Scheduler runs the scheduler once the API server and a node are ready, until ctx ends.
func (p *parts) Scheduler(ctx context.Context, node <-chan struct{}, args []string) error {
	return p.command(ctx, schedulerapp.NewSchedulerCommand(ctx.Done()), args, node)
}

func (p *parts) command(ctx context.Context, cmd *cobra.Command, args []string, also ...<-chan struct{}) error {
	cmd.SetArgs(args)
	p.start(cmd.Name(), func() error { return cmd.ExecuteContext(ctx) }, append(also, p.ready)...)
	return nil
}

// start runs a part after all channels are closed. The engine ends with it.
func (*parts) start(name string, run func() error, after ...<-chan struct{}) {
	go func() {
		for _, c := range after {
			<-c
		}
		defer func() {
			if v := recover(); v != nil {
				logrus.WithField("stack", string(debug.Stack())).Fatalf("%s panic: %v", name, v)
			}
		}()
		err := run()
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("%s exited: %w", name, err)
		}
		signals.RequestShutdown(err)
	}()
}
