package controlplane

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/cert"
)

// What a power cut has torn is removed, what is whole stays.
func TestTornCertificates(t *testing.T) {
	dir := t.TempDir()
	crt, key, err := cert.GenerateSelfSignedCertKey("x", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"good.crt": crt, "good.key": key, "empty.crt": nil, "empty.key": nil, "half.crt": crt[:len(crt)/2], "half.key": key, "alone.crt": crt, "other": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removeTorn(dir)
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if len(names) != 3 || names[0] != "good.crt" || names[1] != "good.key" || names[2] != "other" {
		t.Errorf("%v are left", names)
	}
}
