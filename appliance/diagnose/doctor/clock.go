package doctor

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/health"
	machineclock "rivulet/appliance/machine/clock"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/explain"
	"rivulet/systemd"
)

var clock = Probe{Kind: health.Clock, Title: "clock", Run: probeClock}

// timeError is adjtimex's result while the clock is not synchronized.
const timeError = 5

func probeClock(ctx context.Context, e *Env) Result {
	now := e.Now()
	const cure = "connect the device to a network with a time server, or set the clock: date -s; a board without a battery needs one of the two at every boot"
	if floor, of := e.clockFloor(); now.Before(floor.Add(-time.Minute)) {
		return Failf(cure, "it says %s, yet %s is of %s: certificates would not be valid", now.UTC().Format(time.DateTime), of, floor.UTC().Format(time.DateTime))
	}
	if st, ok := e.running(ctx); ok && !st.Clock.Now.IsZero() {
		if !st.Clock.Plausible {
			return Failf(cure, "it says %s, which cannot be: it is later than %s", now.UTC().Format(time.DateTime), st.Clock.Floor.UTC().Format(time.DateTime))
		}
		if ref := st.Clock.Reference; ref != "" && !st.Clock.Synchronized {
			return Passf("no time service keeps it; compared with %s, it is right", ref)
		}
	}
	tx, state, err := e.Adjtimex()
	switch {
	case err != nil:
		return Skipf("the kernel cannot be asked: %v", err)
	case state == timeError || tx.Status&unix.STA_UNSYNC != 0:
		return Warnf("switch a time service on (timedatectl set-ntp true); where the network blocks NTP, name a server that answers",
			"it says %s; no time service keeps it right", now.UTC().Format(time.DateTime+" MST"))
	}
	return Passf("synchronized")
}

// clockFloor is a time that is certainly past: that of a file written by Rivulet.
func (e *Env) clockFloor() (floor time.Time, of string) {
	for _, f := range []string{e.State + "/state.db", systemd.Binary, systemd.PackageBinary, "/etc/machine-id"} {
		if at, ok := e.changed(f); ok && at.After(floor) {
			floor, of = at, f
		}
	}
	// Older than this source: nothing to compare with, but wrong in any case.
	if oldest := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); floor.Before(oldest) {
		return oldest, "this program"
	}
	return floor, of
}

var clockBehind = Probe{Kind: health.ClockBehind, Title: "pulls that fail by the clock", Every: seldom, Run: probeClockBehind}

// probeClockBehind finds a pod of any cluster on a node of this one whose image is not pulled because the registry's
// certificate begins later than the node's clock says.
func probeClockBehind(ctx context.Context, e *Env) Result {
	client, err := e.API()
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	st, _ := e.running(ctx)
	for _, p := range list.Items {
		away := func(n consumer.VirtualNode) bool { return n.Name == p.Spec.NodeName }
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := c.State.Waiting; w == nil || !explain.NotYetValid(w.Message) || slices.ContainsFunc(st.VirtualNodes, away) {
				continue
			}
			return Warnf("let "+p.Spec.NodeName+" reach an NTP server (UDP port 123), or two of "+strings.Join(machineclock.Registries, ", ")+
				"; or set its clock: page Device of the web console, or there: sudo date -s \"YYYY-MM-DD hh:mm\". The pull is tried again by itself",
				"the registry of %s is not trusted for %s/%s on %s: its certificate begins later than the clock says", peer.Line(c.Image, 200), p.Namespace, p.Name, p.Spec.NodeName)
		}
	}
	return Passf("none")
}
