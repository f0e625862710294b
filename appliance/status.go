package appliance

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/version"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/policy"
)

// statusTimeout bounds what a status may wait for others; what does not answer is left out.
const statusTimeout = 2 * time.Second

// Status gathers what `rivulet status` shows.
func (s *System) Status() api.Status {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	upgrade := s.upgrade.View() // before Health: it reports there
	st := api.Status{
		Upgrade: upgrade,
		Name:    s.name(), NodeName: s.nodeName, ID: s.id.ID(), Version: version.Version,
		NodeAddress: s.nodeIP.String(), Started: s.begun,
		Stages: s.manager.Status(), Host: s.facts, PIDs: s.pids(), Clock: s.clock.Status(),
	}
	st.Ready, st.Waiting = needed.Ready(st.Stages)
	st.ReadyAfter, st.ReadyAfterBoot = needed.Took(st.Stages)
	st.Config = s.configStatus()
	st.Addresses, st.StatusPage, st.DatastoreReady = s.page.Addresses(), s.page.URL(), s.inOrder.Load()
	made := s.made.get()
	tun, fab, off := made.tunnel, made.fabric, made.offload
	if tun != nil {
		if ts, err := tun.Status(ctx); err == nil {
			st.Tunnel = &ts
		}
	}
	if fab != nil {
		st.Peers = fab.Peers()
	}
	if off != nil {
		st.Status = off.Status()
	}
	st.Pods, st.Health, st.Footprint = s.countPods(ctx), s.problems(), s.footprint.Report()
	return st
}

// pids reads the PID files; a process that is gone is left out.
func (s *System) pids() map[string]int {
	out := map[string]int{}
	for _, name := range []string{"supervisor", "engine", "tunnel"} {
		raw, err := os.ReadFile(filepath.Join(s.cfg.Dirs.Run, name+".pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			out[name] = pid
		}
	}
	return out
}

// countPods asks the API server's cache, so that status costs no informer.
func (s *System) countPods(ctx context.Context) (n api.Pods) {
	client := s.engine.Client()
	if client == nil {
		return n
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		ResourceVersion: "0",
		FieldSelector:   "status.phase!=Succeeded,status.phase!=Failed",
	})
	if err != nil {
		return n
	}
	for _, p := range pods.Items {
		switch {
		case p.Status.Reason == pod.ReasonRefused: // it is nowhere
		case p.Labels[policy.OriginLabel] != "":
			n.Guests++
		case p.Spec.NodeName == s.nodeName:
			n.Home++
		case p.Spec.NodeName != "":
			n.Away++
		}
	}
	return n
}
