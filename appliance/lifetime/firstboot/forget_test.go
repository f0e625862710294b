package firstboot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/config"
	"rivulet/appliance/state/durable"
)

// owned is a device of the full card whose owner has signed in with a code, by ssh, and added a network.
func owned(t *testing.T) tree {
	files := full()
	files[bootDir+"/"+config.CardName] += "consoleCode: " + codeHash + "\n"
	tr := newTree(t, files)
	tr.run()
	return fill(t, tr, map[string]string{
		wifiDir + "/cafe.psk": "[Security]\nPassphrase=added-later\n", wifiDir + "/ap/home.ap": "x", "/etc/ssh/ssh_host_ed25519_key": "former",
		bootDir + "/Left.KUBECONFIG": "canary-token", bootDir + "/Rivulet.yaml.txt": "name: bench-7\n", bootDir + "/slot.cfg": "the loader's",
	})
}

var codeHash = "sha256:" + strings.Repeat("0a", 32)

// ofTheOwner are words that only the former owner's files have.
var ofTheOwner = append([]string{"bench-7", "me@desk", "added-later", "former", codeHash, "me@uni.example", "192.0.2.10"}, secrets...)

// keepsNothing boots the device, which must know nothing of its owner.
func keepsNothing(t *testing.T, tr tree) {
	t.Helper()
	n := tr.run()
	if !strings.HasPrefix(n.Hostname, "rivulet-") || len(n.Files) > 0 || len(n.Problems) > 0 {
		t.Errorf("%+v", n)
	}
	for name, file := range tr.all() {
		for _, word := range ofTheOwner {
			if strings.Contains(file, word) {
				t.Errorf("%s has %q", name, word)
			}
		}
	}
	if tr.text(bootDir+"/slot.cfg") == "" {
		t.Error("what the loader needs is gone")
	}
}

func TestAFormerOwnerDoesNotComeBack(t *testing.T) {
	tr := owned(t)
	removed, err := Forget(tr.device())
	if err != nil || len(removed) < 8 {
		t.Errorf("removed %q, %v", removed, err)
	}
	keepsNothing(t, tr)
	if removed, err := Forget(newTree(t, map[string]string{bootDir + "/slot.cfg": ""}).device()); err != nil || len(removed) > 0 {
		t.Errorf("of a device that nobody owned: %q, %v", removed, err)
	}
}

// Power cuts at each step: while the card can still be taken, the device has lost nothing; repeated, all is gone.
func TestAFormerOwnerAndPowerCuts(t *testing.T) {
	for steps := 0; ; steps++ {
		tr := owned(t)
		left := steps
		durable.Failpoint = func(string, string) error {
			if left--; left < 0 {
				return durable.ErrCut
			}
			return nil
		}
		_, err := Forget(tr.device())
		durable.Failpoint = nil
		if err == nil {
			if steps < 10 {
				t.Errorf("only %d steps", steps)
			}
			return
		}
		if !errors.Is(err, durable.ErrCut) {
			t.Fatal(err)
		}
		if tr.text(bootDir+"/"+config.CardName) != "" && (tr.text(keysPath) == "" || tr.text(NotePath) == "") {
			t.Errorf("cut at step %d: the device forgot before its card did", steps)
		}
		tr.run() // the boot after it
		if _, err := Forget(tr.device()); err != nil {
			t.Fatal(err)
		}
		keepsNothing(t, tr)
	}
}

// A card that cannot be written would bring the owner back: the reset ends with a cure, and has changed nothing.
func TestACardThatCannotBeEmptied(t *testing.T) {
	tr := owned(t)
	before := tr.all()
	dev := tr.device()
	dev.Open = func() (func(), error) { return nil, errors.New("it is read-only") }
	if _, err := Forget(dev); err == nil || !strings.Contains(err.Error(), "remove rivulet.yaml from it in a PC") {
		t.Error(err)
	}
	same(t, "after the error", tr.all(), before)
	if err := os.RemoveAll(filepath.Join(tr.root, bootDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Forget(tr.device()); err == nil || tr.text(keysPath) == "" {
		t.Errorf("without the partition: %v", err)
	}
}
