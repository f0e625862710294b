package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rivulet/appliance/engine/iptables"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
)

// toolsAgain is the interval of checks for missing programs.
const toolsAgain = time.Second

// waitTools blocks while programs are missing without which the engine would end.
func waitTools(ctx context.Context, waiting func(string, ...any), missing func() []string) error {
	for {
		tools := missing()
		if len(tools) == 0 {
			return nil
		}
		waiting("not in PATH: %s; pods need it for their volumes: apt-get install mount; it goes on by itself then",
			strings.Join(tools, ", "))
		if !changes.Wait(ctx, toolsAgain) {
			return ctx.Err()
		}
	}
}

// iptablesAgain is the pause before the next check when no iptables works: a kernel module is missing.
const iptablesAgain = 5 * time.Second

// waitIptables blocks while no iptables works: kube-proxy and flannel would end the engine repeatedly.
func (e *Engine) waitIptables(ctx context.Context, waiting func(string, ...any)) error {
	waiting("for the kernel's packet filter")
	for {
		choice, err := iptables.Choose(ctx, e.cfg.Netfilter)
		if err == nil {
			e.cfg.Log.Info("iptables chosen", "path", choice.Path, "backend", choice.Backend, "version", choice.Version, "why", choice.Why)
			e.iptables = choice
			return nil
		}
		waiting("%v; it goes on by itself then", err)
		if !changes.Wait(ctx, iptablesAgain) {
			return ctx.Err()
		}
	}
}

// checkPort reports which process holds the port, at an address or at all of them (""), before k3s fails on it with a
// less clear error. Virtual nodes have the kubelet's port at addresses of their own.
func checkPort(address string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		var why syscall.Errno // without the address, which the message has already
		if !errors.As(err, &why) {
			return fmt.Errorf("engine: port %d/tcp: %w; it is tried again", port, err)
		}
		return fmt.Errorf("engine: port %d/tcp is taken%s (%w); stop that program (often another Kubernetes: k3s, microk8s, kubelet); it goes on by itself then",
			port, netmon.Listener("tcp", port), why)
	}
	return l.Close()
}
