package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestGatewayProgram(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, current, "gateway")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "arm64.zst"), w.EncodeAll([]byte("program"), nil), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "amd64.zst"), []byte("no such thing"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := Dir{root: root}
	if raw, err := d.Gateway("arm64"); err != nil || string(raw) != "program" {
		t.Errorf("%q %v", raw, err)
	}
	for arch, want := range map[string]string{"riscv64": "no gateway program for riscv64", "amd64": "damaged", "../../x": "no gateway program"} {
		if _, err := d.Gateway(arch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arch, err)
		}
	}
}
