package firstboot

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"rivulet/appliance/health"
	"rivulet/image/device/layout"
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
	if p := problems.Problems(); len(p) > 0 {
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
	if len(p) != 1 || p[0].Code != health.DataInMemory.Code || p[0].Text != "/dev/sda4 cannot be used: Bad magic; all is in memory, and gone at the next start" || p[0].Cure == "" {
		t.Errorf("%+v", p)
	}
}
