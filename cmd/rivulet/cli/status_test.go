package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
	"rivulet/offload"
)

// What a supervisor says is printed once, or again and again until the user has seen
// enough; the exit code of status is for scripts.
func TestStatusOnceAndWatched(t *testing.T) {
	for _, c := range []struct {
		args  string
		ready bool
		asked int32 // how often, before the user has enough
		code  int
		want  string
	}{
		{args: "status", ready: true, asked: 1, want: "lab-1  Ready"},
		{args: "status", asked: 1, code: exitNotReady, want: "not ready: engine"},
		{args: "status -o json", asked: 1, code: exitNotReady, want: `"name":"lab-1"`},
		{args: "status --watch", asked: 2, want: "not ready: engine"},
		{args: "status --watch -o json", asked: 2, want: `"name":"lab-1"`},
		{args: "peers", asked: 1, want: "none found yet"},
		{args: "peers --watch -o wide", asked: 2, want: "none found yet"},
		{args: "peers --watch -o json", asked: 2},
	} {
		t.Run(c.args, func(t *testing.T) {
			ctx, enough := context.WithCancel(t.Context())
			defer enough()
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "rivulet.sock"))
			if err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int32
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				json.NewEncoder(w).Encode(api.Status{Name: "lab-1", Ready: c.ready, Waiting: "engine"})
			})}
			go srv.Serve(l)
			defer srv.Close()
			root, out := newRoot("engine"), &reader{after: func() {
				if asked.Load() >= c.asked && c.asked > 1 {
					enough()
				}
			}}
			root.SetOut(out)
			root.SetArgs(append([]string{"--runtime", dir}, strings.Fields(c.args)...))
			err = root.ExecuteContext(ctx)
			var exit *exitError
			if code := 0; errors.As(err, &exit) && exit.code != c.code || !errors.As(err, &exit) && (err != nil || c.code != code) {
				t.Errorf("%v, want code %d", err, c.code)
			}
			if got := out.String(); !strings.Contains(got, c.want) || strings.Contains(got, "\033") {
				t.Errorf("printed %q, want %q and no escape sequence", got, c.want)
			}
			if asked.Load() != c.asked {
				t.Errorf("asked %d times, want %d", asked.Load(), c.asked)
			}
		})
	}
}

// reader is somebody who has enough at some time.
type reader struct {
	bytes.Buffer
	after func()
}

func (s *reader) Write(p []byte) (int, error) {
	defer s.after()
	return fmt.Fprint(&s.Buffer, string(p))
}

// A device that is well, with two peers and a campus, fits a terminal of 80x24.
func TestStatusFitsAScreen(t *testing.T) {
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi")}
	st := api.Status{
		Name: "classroom-1", NodeName: "classroom-1", NodeAddress: "100.127.201.144", ID: peer.ID(strings.Repeat("a", 32)), Version: "v0.1.0", Started: time.Now().Add(-100 * time.Hour),
		Ready: true, Stages: []lifecycle.Status{{Name: "engine", State: lifecycle.Ready}, {Name: "node", State: lifecycle.Ready}},
		Room: map[string]api.Room{"classroom-1": {Allocatable: room, Pods: 12, Architecture: "amd64"}}, Pods: api.Pods{Home: 12, Away: 100},
	}
	for _, name := range []string{"classroom-2", "classroom-3"} {
		st.Peers = append(st.Peers, peer.View{State: peer.Connected, RTT: 12340 * time.Microsecond, Record: peer.Record{ID: peer.ID(strings.Repeat(name[10:], 32)), Name: name, Trust: peer.Trust{How: "invite"}}})
	}
	for _, name := range []string{"burst-campus", "classroom-2", "classroom-3"} {
		st.VirtualNodes = append(st.VirtualNodes, offload.VirtualNode{Name: name, Ready: true, Architecture: "arm64", Allocatable: room, Pods: 40})
	}
	var out strings.Builder
	if err := printStatus(&out, st, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) > 23 { // and the prompt
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(strings.TrimRight(line, " ")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(out.String(), "classroom-1  Ready\n") || strings.Contains(out.String(), "STAGE") {
		t.Errorf("not what is to be seen of a device that is well:\n%s", out.String())
	}
}

// Each worker's room has a line at home, and a worker says whose it is.
func TestStatusCountsWorkers(t *testing.T) {
	room := func(cpu, used string) api.Room {
		return api.Room{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}, Requested: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(used)}, Pods: 1, Architecture: "arm64"}
	}
	st := api.Status{Name: "lab", NodeName: "a", Ready: true, Room: map[string]api.Room{"a": room("1", "500m"), "c": room("4", "1"), "d": room("4", "1"), "peer-b": {Pods: 9}},
		Nodes: []api.ClusterNode{{Node: "c", State: peer.Connected}, {Node: "d", State: peer.Lost}}}
	var out strings.Builder
	if err := printStatus(&out, st, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"home true arm64 0.5 of 1", "home c true arm64 3.0 of 4", "home d false arm64 3.0 of 4"} {
		if !strings.Contains(lines, want) {
			t.Errorf("there is no line %q:\n%s", want, &out)
		}
	}
	sum, ok := st.Home()
	if cpu, used := sum.Allocatable[corev1.ResourceCPU], sum.Requested[corev1.ResourceCPU]; !ok || cpu.String() != "9" || used.String() != "2500m" || sum.Pods != 3 {
		t.Errorf("%+v %v", sum, ok)
	}
	out.Reset()
	worker := api.Status{Name: "c", NodeName: "c", Ready: true, Member: &api.Membership{Cluster: "lab"}}
	if err := printStatus(&out, worker, false); err != nil || !strings.Contains(out.String(), "WORKER  this device runs pods of cluster lab;") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// What a worker's rights do not cover is explained, and any other refusal is left as it is.
func TestForbiddenOnAWorker(t *testing.T) {
	forbidden := fmt.Errorf("x: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("User cannot list")))
	for member, want := range map[string]string{`, "member": {"cluster": "lab"}`: "c is a worker of cluster lab", "": "User cannot list"} {
		dir := t.TempDir()
		supervise(t, filepath.Join(dir, "rivulet.sock"), map[string]json.RawMessage{"GET /v1/status": json.RawMessage(`{"nodeName": "c"` + member + `}`)})
		if err := onWorker(t.Context(), dir, forbidden); !strings.Contains(err.Error(), want) || !apierrors.IsForbidden(err) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A full disk is in the first line, and at home's place.
func TestStatusOfAFullDisk(t *testing.T) {
	st := api.Status{Name: "lab-1", NodeName: "lab-1", Ready: true, Room: map[string]api.Room{"lab-1": {Pressure: []string{"DiskPressure"}, Architecture: "amd64"}},
		Health: []health.Problem{{Kind: *health.DiskSpace, Text: "1 % are free", Cure: "rivulet image rm --unused"}}}
	var out strings.Builder
	if err := printStatus(&out, st, false); err != nil || !strings.Contains(out.String(), "lab-1  takes no new pods: DiskPressure, 1 error\n") ||
		!strings.Contains(out.String(), "home   false  amd64") || !strings.Contains(out.String(), "ERROR   the disk is nearly full [disk-space]: 1 % are free; rivulet image rm --unused\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
