package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/volume"
	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/fakenodes"
	"rivulet/test/harness/lab"
)

const (
	perHollow = 20 // sessions that a hollow node has room for
	// Hollow nodes of home, of each neighbour and of the campus.
	hollowHome, hollowNeighbour, hollowCampus = 2, 3, 4
)

// makeExamNumbers makes a lab, which stays, and plays the whole exam on hollow nodes of home, two neighbours and a campus.
func makeExamNumbers(ctx context.Context, dir, binary string, tell func(string, ...any)) error {
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary, Devices: 4, Unplugged: true, Tell: tell})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := setExam(ctx, l, 1, fmt.Sprintf("cpu=%dm,memory=8Gi,pods=%d", hollowCampus*perHollow*examCPU, hollowCampus*perHollow), tell)
	if err != nil {
		return err
	}
	if err := e.hollowOut(ctx); err != nil {
		return err
	}
	return e.numbers(ctx)
}

// hollowOut gives every cluster nodes without machines, and closes its own node to pods that come.
func (e *exam) hollowOut(ctx context.Context) error {
	e.tell("hollow nodes: %d at home, %d at each neighbour, %d at the campus, each with room for %d sessions; no containers", hollowHome, hollowNeighbour, hollowCampus, perHollow)
	for _, p := range e.places() {
		n := hollowNeighbour
		switch {
		case p == e.home:
			n = hollowHome
		case p.campus:
			n = hollowCampus
			more := fmt.Appendf(nil, `{"spec":{"hard":{"requests.cpu":"8","requests.memory":"16Gi","pods":"%d"}}}`, n*perHollow+5)
			if _, err := p.api.CoreV1().ResourceQuotas(campus.Namespace).Patch(ctx, "quota", types.MergePatchType, more, metav1.PatchOptions{}); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
		}
		if err := p.hollow(ctx, n); err != nil {
			return err
		}
	}
	return await.Until(ctx, func() error {
		for _, p := range e.lenders {
			node, err := e.home.api.CoreV1().Nodes().Get(ctx, p.node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			n := hollowNeighbour
			if p.campus {
				n = hollowCampus
			}
			if cpu, pods := node.Status.Allocatable.Cpu().MilliValue(), node.Status.Allocatable.Pods().Value(); cpu < int64(n*perHollow*examCPU) || pods < int64(n*perHollow) {
				return fmt.Errorf("demo: %s offers %d millicores and %d pods", p.node, cpu, pods)
			}
		}
		return nil
	})
}

// hollow keeps n nodes, and the volumes on them, until ctx ends.
func (p *place) hollow(ctx context.Context, n int) error {
	own, err := p.api.CoreV1().Nodes().Patch(ctx, p.device.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	var nodes []fakenodes.Node
	for i := range n {
		nodes = append(nodes, fakenodes.Node{Name: fmt.Sprintf("%s-hollow-%d", p.device.Name, i), Architecture: own.Status.NodeInfo.Architecture,
			Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(200 + i), 0}), 24),
			Room: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(perHollow*examCPU, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("2Gi"),
				corev1.ResourceEphemeralStorage: resource.MustParse("10Gi"), corev1.ResourcePods: resource.MustParse("110")}})
	}
	kept, err := fakenodes.Register(ctx, p.api, nodes...)
	if err != nil {
		return err
	}
	go kept.Run(ctx)
	go fakenodes.NewProvisioner(p.api, volume.Provisioner, nodes...).Run(ctx)
	return nil
}

// numbers plays the exam and measures it.
func (e *exam) numbers(ctx context.Context) error {
	before, err := e.room(ctx)
	if err != nil {
		return err
	}
	if err := e.open(ctx); err != nil {
		return err
	}
	e.tell("home has room for %d sessions; it may use %v", hollowHome*perHollow, before)
	begun, idle := time.Now(), idleSince()
	if err := e.arrive(ctx, time.Minute); err != nil {
		return err
	}
	e.tell("%d sessions were created within %.0f s", e.total(), time.Since(begun).Seconds())
	if err := e.roll.waitRunning(ctx, e.total()); err != nil {
		return err
	}
	e.tell("all run %.1f s after the first was created: %s; %s", time.Since(begun).Seconds(), counted(e.where()), idle())
	e.tell("from creation to Running: all %s", spread(e.roll.took(everySession)))
	for _, part := range []struct {
		what string
		keep func(attendance) bool
	}{
		{"with a volume, at home", func(s attendance) bool { return e.hasVolume(s) && e.isHome(s.node) }},
		{"with a volume, at neighbours", func(s attendance) bool { return e.hasVolume(s) && !e.isHome(s.node) }},
		{"without, at home", func(s attendance) bool { return !e.hasVolume(s) && e.isHome(s.node) }},
		{"without, at the campus", func(s attendance) bool { return !e.hasVolume(s) && !e.isHome(s.node) }},
	} {
		took := e.roll.took(part.keep)
		e.tell("    %d %s: %s", len(took), part.what, spread(took))
	}
	if err := e.refused(ctx); err != nil {
		return err
	}
	if err := e.restarts(ctx); err != nil {
		return err
	}
	return e.endOfNumbers(ctx, before)
}

func (e *exam) hasVolume(s attendance) bool { return s.namespace == e.courses[0].namespace }

// isHome reports whether a node is home's own.
func (e *exam) isHome(node string) bool {
	for _, p := range e.lenders {
		if p.node == node {
			return false
		}
	}
	return true
}

// restarts ends each supervisor without warning, all at once; home's and the lenders' pods stay what they are.
func (e *exam) restarts(ctx context.Context) error {
	was, err := e.away(ctx)
	if err != nil {
		return err
	}
	for _, p := range e.places() {
		if p.campus {
			continue // it has none
		}
		took, err := restart(ctx, p, false)
		if err != nil {
			return err
		}
		if err := e.home.device.WaitPeers(ctx, "b", "c"); err != nil {
			return err
		}
		now, err := e.away(ctx)
		if err := errors.Join(err, e.roll.intact()); err != nil {
			return err
		}
		if fmt.Sprint(now) != fmt.Sprint(was) {
			return fmt.Errorf("demo: after a restart of %s's supervisor other pods run at the lenders: %v, before %v", p.device.Name, now, was)
		}
		e.tell("%s's supervisor is killed and started again, ready after %.1f s: all %d sessions have the same pod (UID) and node at home, and %d of them at the lenders", p.device.Name, took.Seconds(), e.total(), len(was))
	}
	return nil
}

// endOfNumbers has the deadline end all sessions, and deletes the exam.
func (e *exam) endOfNumbers(ctx context.Context, before map[string]string) error {
	e.roll.end()
	end, err := e.deadline(ctx, examBell)
	if err != nil {
		return err
	}
	e.tell("the exam ends in %v: activeDeadlineSeconds of %d Jobs", examBell, e.total())
	idle := func() string { return "" }
	if err := await.Until(ctx, func() error { // what comes before it is no part of the measurement
		if time.Now().Before(end) {
			return errors.New("demo: the exam has not ended")
		}
		idle = idleSince()
		return nil
	}); err != nil {
		return err
	}
	if err := e.ended(ctx, end); err != nil {
		return err
	}
	e.tell("    %s", idle())
	idle = idleSince()
	took, err := e.close(ctx, before)
	if err != nil {
		return err
	}
	e.tell("the courses are deleted: no namespace, pod, Job, claim or volume is left on any cluster (last seen: %s), and home may use what it might before; %s", took, idle())
	fmt.Printf("\n%d CPUs for four clusters, their %d hollow nodes and this program together.\n\n", runtime.NumCPU(), hollowHome+2*hollowNeighbour+hollowCampus)
	return nil
}

// idleSince measures, until its result is called, how much of the machine's time nobody wanted: near zero the machine
// was the limit.
func idleSince() func() string {
	read := func() (idle, all float64) {
		raw, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, 0
		}
		first, _, _ := strings.Cut(string(raw), "\n")
		for i, f := range strings.Fields(first)[1:9] { // the others are counted in user and nice already
			ticks, err := strconv.ParseFloat(f, 64)
			if err != nil {
				return 0, 0
			}
			if all += ticks; i == 3 || i == 4 { // idle, and idle while a disk works
				idle += ticks
			}
		}
		return idle, all
	}
	idle, all := read()
	return func() string {
		i, a := read()
		return fmt.Sprintf("nobody wanted %.0f %% of the machine's time", 100*(i-idle)/max(1, a-all))
	}
}
