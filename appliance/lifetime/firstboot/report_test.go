package firstboot

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/image/device/layout"
	"rivulet/test/harness/await"
)

func TestWhatTheCardHasWrongIsAProblem(t *testing.T) {
	root := t.TempDir()
	var problems health.Tracker
	log := slog.New(slog.DiscardHandler)
	Report(root, &problems, log)
	if p := problems.Problems(); len(p) > 0 {
		t.Errorf("without a card: %v", p)
	}
	boot := filepath.Join(root, "boot")
	if err := os.Mkdir(boot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(boot, "rivulet.yaml"), []byte("nmae: a\nshare: {cpu: 50}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(Device{Root: root, Boot: "/boot"}); err != nil {
		t.Fatal(err)
	}
	Report(root, &problems, log)
	p := problems.Problems()
	if len(p) != 2 || p[0].Text != `rivulet.yaml:1:1: unknown key "nmae"` || p[0].Cure != "did you mean name?" || p[1].Text != `rivulet.yaml:2:14: share.cpu: "50" lacks the %` {
		t.Errorf("%+v", p)
	}
}

func TestDataInMemoryIsAProblem(t *testing.T) {
	root := t.TempDir()
	var problems health.Tracker
	log := slog.New(slog.DiscardHandler)
	ReportInitrd(root, &problems, log)
	if p := problems.Problems(); len(p) > 0 || stateOf(t, root, lifecycle.Ready) != "" {
		t.Errorf("with data: %v", p)
	}
	why := filepath.Join(root, layout.DataFailed)
	if err := os.MkdirAll(filepath.Dir(why), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(why, []byte("/dev/sda4 cannot be used: Bad magic\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ReportInitrd(root, &problems, log)
	p := problems.Problems()
	if len(p) != 1 || p[0].Code != health.DataInMemory.Code || p[0].Text != "/dev/sda4 cannot be used: Bad magic; no cluster is started and no peer is trusted, and settings are in memory and gone at the next start" || p[0].Cure == "" {
		t.Errorf("%+v", p)
	}
	if waits := stateOf(t, root, lifecycle.Starting); !strings.Contains(waits, "data-in-memory") {
		t.Errorf("what needs the data waits %q", waits)
	}
}

func TestASlotThatWasLeftIsAProblem(t *testing.T) {
	root := t.TempDir()
	var problems health.Tracker
	write := func(name, content string) {
		t.Helper()
		if err := (disk{root}).write(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said := func() string {
		problems.Clear(health.SlotLeft)
		ReportLeft(root, &problems, slog.New(slog.DiscardHandler))
		for _, p := range problems.Problems() {
			return p.Text
		}
		return ""
	}
	if got := said(); got != "" {
		t.Errorf("no image: %s", got)
	}
	write(layout.RunSlot, "b\n")
	if got := said(); got != "" {
		t.Errorf("both are well: %s", got)
	}
	write(layout.BootDir+"/b/"+layout.Left, "long ago\n")
	if got := said(); got != "" {
		t.Errorf("the one that runs: %s", got)
	}
	write(layout.BootDir+"/a/"+layout.Left, "its system cannot be read\n")
	if got := said(); !strings.HasPrefix(got, "slot a was left: its system cannot be read; slot b runs, with rivulet ") {
		t.Error(got)
	}
}

// stateOf waits until the component of the data has a state, and returns its detail.
func stateOf(t *testing.T, root string, state lifecycle.State) string {
	t.Helper()
	m, err := lifecycle.New(slog.New(slog.DiscardHandler), lifecycle.Component{Name: "data", Run: Kept(root)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); m.Run(ctx) }()
	defer func() { cancel(); <-over }()
	await.True(t, 10*time.Second, "the component is "+string(state), func() bool {
		s := m.Status()[0]
		return s.State == state && (state == lifecycle.Ready || s.Detail != "")
	})
	return m.Status()[0].Detail
}
