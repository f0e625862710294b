package appliance

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"rivulet/appliance/firstboot"
)

func TestWhatTheCardHasWrongIsAProblem(t *testing.T) {
	root := t.TempDir()
	s := &System{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	s.tellFirstboot(root)
	if p := s.health.Problems(); len(p) > 0 {
		t.Errorf("without a card: %v", p)
	}
	boot := filepath.Join(root, "boot")
	if err := os.Mkdir(boot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(boot, "rivulet.yaml"), []byte("nmae: a\nshare: {cpu: 50}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := firstboot.Run(firstboot.Device{Root: root, Boot: "/boot"}); err != nil {
		t.Fatal(err)
	}
	s.tellFirstboot(root)
	p := s.health.Problems()
	if len(p) != 2 || p[0].Text != `rivulet.yaml:1:1: unknown key "nmae"` || p[0].Cure != "did you mean name?" || p[1].Text != `rivulet.yaml:2:14: share.cpu: "50" lacks the %` {
		t.Errorf("%+v", p)
	}
}
