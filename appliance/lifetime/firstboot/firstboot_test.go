package firstboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/appliance/config"
	"rivulet/appliance/state/durable"
	"rivulet/image/device/layout"
)

const bootDir = "/boot/firmware"

const card = `name: bench-7
trust: {mode: group, secret: sixteen-and-more-letters}
share: {cpu: 50%}
wifi: {country: "DE", networks: [{ssid: lab, password: a-long-word}, {ssid: "café", password: '  b\ackslash', hidden: true}, {ssid: open}]}
ssh: {keys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@desk"]}
burst: [{name: campus, kubeconfig: campus.kubeconfig}]
`

// tree is a device's files in a folder.
type tree struct {
	t    testing.TB
	root string
}

type failer interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

func newTree(t testing.TB, files map[string]string) tree {
	return fill(t, tree{t, t.TempDir()}, files)
}

func fill(t failer, tr tree, files map[string]string) tree {
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(tr.root, name)), 0o755), os.WriteFile(filepath.Join(tr.root, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func (tr tree) device() Device { return Device{Root: tr.root, Boot: bootDir} }

func (tr tree) run() Note {
	tr.t.Helper()
	n, err := Run(tr.device())
	if err != nil {
		tr.t.Fatal(err)
	}
	return n
}

func (tr tree) text(name string) string {
	raw, _ := os.ReadFile(filepath.Join(tr.root, name))
	return string(raw)
}

// all is every file with its mode and content; what is random by nature is left out.
func (tr tree) all() map[string]string {
	out := map[string]string{}
	_ = filepath.WalkDir(tr.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			fi, _ := d.Info()
			raw, _ := os.ReadFile(path)
			out[strings.TrimPrefix(path, tr.root)] = fi.Mode().String() + " " + string(raw)
		}
		return nil
	})
	return out
}

func full() map[string]string {
	files := map[string]string{
		bootDir + "/" + config.CardName: card, bootDir + "/campus.kubeconfig": "kind: Config\nuser: canary-token\n", hostnamePath: "rivulet\n",
	}
	for name, text := range campus() {
		files[bootDir+"/network/"+name] = text
	}
	return files
}

var secrets = []string{"sixteen-and", "a-long-word", "ackslash", "canary-token", "eduroam-word", "wired-word", "d2lyZWQta2V5LW9mLWEtY2FyZA=="}

// A card with everything: all of it is where it belongs, for root's eyes alone, and
// no secret is left on the boot partition.
func TestEverything(t *testing.T) {
	tr := newTree(t, full())
	n := tr.run()
	if len(n.Problems) > 0 || n.Hostname != "bench-7" {
		t.Errorf("%+v", n)
	}
	for name, want := range map[string]string{
		hostnamePath: "bench-7\n", hostsPath: "127.0.1.1 bench-7\n", secretPath: "sixteen-and-more-letters\n",
		config.DefaultPath:                      "secretFile: /etc/rivulet/group.secret",
		wifiDir + "/lab.psk":                    "[Security]\nPassphrase=a-long-word\n",
		wifiDir + "/=636166c3a9.psk":            "[Security]\nPassphrase=\\s\\sb\\\\ackslash\n[Settings]\nHidden=true\n",
		radioPath:                               "Country=DE",
		keysPath:                                "me@desk",
		"/etc/rivulet/campus.kubeconfig":        "canary-token",
		networkdDir + "/10-card-20-lab.network": "Address=192.0.2.10/24\n",
		networkdDir + "/10-card-lab20.netdev":   "Id=20\n",
		wifiDir + "/eduroam.8021x":              "\nEAP-PEAP-CACert=/etc/rivulet/network/uni-ca.pem\nEAP-PEAP-ServerDomainMask=radius.uni.example\nEAP-PEAP-Phase2-Method=MSCHAPV2\nEAP-PEAP-Phase2-Identity=me@uni.example\nEAP-PEAP-Phase2-Password=eduroam-word\n",
		signInDir + "/device.key":               "d2lyZWQta2V5",
		signInDir + "/wired.conf":               "eap=TTLS\n",
	} {
		if !strings.Contains(tr.text(name), want) {
			t.Errorf("%s is %q, want %q in it", name, tr.text(name), want)
		}
	}
	if _, err := os.Stat(filepath.Join(tr.root, wifiDir, "open.open")); err != nil {
		t.Error("the open network is not known:", err)
	}
	for name, file := range tr.all() {
		for _, s := range secrets {
			if !strings.Contains(file, s) {
				continue
			}
			if strings.HasPrefix(name, bootDir) {
				t.Errorf("%s still has %q", name, s)
			}
			if !strings.HasPrefix(file, "-rw------- ") {
				t.Errorf("others can read %s: %.12s", name, file)
			}
		}
	}
	if left := tr.text(bootDir + "/" + config.CardName); strings.Count(left, config.Moved) != 3 || !strings.Contains(left, "bench-7") {
		t.Errorf("left on the card:\n%s", left)
	}
	before := tr.all()
	if again := tr.run(); len(again.Problems) > 0 {
		t.Errorf("the second boot: %+v", again)
	}
	same(t, "after the second boot", tr.all(), before)
}

func same(t failer, what string, got, want map[string]string) {
	for name := range got {
		if got[name] != want[name] {
			t.Fatalf("%s: %s is %q, want %q", what, name, got[name], want[name])
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Fatalf("%s: %s is missing", what, name)
		}
	}
}

// Thirty cards with nothing on them are thirty devices, each with a name that it keeps.
func TestNothing(t *testing.T) {
	seen := map[string]bool{}
	for range 30 {
		tr := newTree(t, map[string]string{hostnamePath: "rivulet\n"})
		name := tr.run().Hostname
		if seen[name] || len(name) < 10 || tr.text(hostnamePath) != name+"\n" {
			t.Fatalf("%q, seen: %v; /etc/hostname %q", name, seen[name], tr.text(hostnamePath))
		}
		seen[name] = true
		if again := tr.run().Hostname; again != name {
			t.Errorf("%s is called %s after the second boot", name, again)
		}
		for _, none := range []string{keysPath, config.DefaultPath, bootDir + "/" + ErrorName} {
			if tr.text(none) != "" {
				t.Errorf("without a card there is %s", none)
			}
		}
	}
}

// What is wrong is told beside the card, in words for a PC; the rest is taken. Mended,
// nothing is left of it.
func TestMistakes(t *testing.T) {
	tr := newTree(t, map[string]string{bootDir + "/" + config.CardName: "name: Bad Name\nshare: {cpu: 50%}\nwifi: {networks: [{ssid: lab, password: short}]}\n"})
	n := tr.run()
	if len(n.Problems) != 2 || !strings.HasPrefix(n.Hostname, "rivulet-") {
		t.Errorf("%+v", n)
	}
	told := tr.text(bootDir + "/" + ErrorName)
	for _, want := range []string{"rivulet.yaml:1:7: name:", "bad-name", "rivulet.yaml:3:", "8 to 63 plain characters", "\r\n"} {
		if !strings.Contains(told, want) {
			t.Errorf("%q is missing in %q", want, told)
		}
	}
	if !strings.Contains(tr.text(config.DefaultPath), "cpu: 50%") || tr.text(keysPath) != "" {
		t.Errorf("config %q", tr.text(config.DefaultPath))
	}
	if kept, err := Read(tr.root); err != nil || len(kept.Problems) != 2 {
		t.Errorf("the supervisor sees %+v, %v", kept, err)
	}
	fill(t, tr, map[string]string{bootDir + "/" + config.CardName: "name: good-name\n"})
	if n := tr.run(); len(n.Problems) > 0 || tr.text(bootDir+"/"+ErrorName) != "" || tr.text(hostnamePath) != "good-name\n" || strings.Contains(tr.text(config.DefaultPath), "cpu") {
		t.Errorf("%+v, told %q", n, tr.text(bootDir+"/"+ErrorName))
	}
}

// The card goes back into a PC: a network more, ssh no more. What the device has
// of secrets stays; what somebody changed on the device is not overwritten.
// A device whose data is in memory must not take the only copy that lasts; once the
// data partition can be used again, it does.
func TestSecretsStayWhileNothingIsKept(t *testing.T) {
	files := full()
	files[layout.DataFailed] = "/dev/sda4 cannot be used\n"
	tr := newTree(t, files)
	if n := tr.run(); len(n.Problems) > 0 || n.Hostname != "bench-7" {
		t.Errorf("%+v", n)
	}
	if tr.text(bootDir+"/"+config.CardName) != card || tr.text(bootDir+"/campus.kubeconfig") == "" {
		t.Error("the card lost something to a device that keeps nothing")
	}
	if !strings.Contains(tr.text(wifiDir+"/lab.psk"), "a-long-word") {
		t.Error("the Wi-Fi is not used")
	}
	mended := newTree(t, map[string]string{bootDir + "/" + config.CardName: tr.text(bootDir + "/" + config.CardName),
		bootDir + "/campus.kubeconfig": tr.text(bootDir + "/campus.kubeconfig")})
	mended.run()
	if left := mended.text(bootDir + "/" + config.CardName); strings.Contains(left, "a-long-word") {
		t.Errorf("the card after the next start: %s", left)
	}
}

func TestAnotherCardLater(t *testing.T) {
	tr := newTree(t, full())
	tr.run()
	left := tr.text(bootDir + "/" + config.CardName)
	i, j := strings.Index(left, "ssh:"), strings.Index(left, "burst:")
	fill(t, tr, map[string]string{bootDir + "/" + config.CardName: strings.Replace(left[:i]+left[j:], "cpu: 50%", "cpu: 10%", 1)})
	if n := tr.run(); len(n.Problems) > 0 {
		t.Error(n.Problems)
	}
	if tr.text(keysPath) != "" {
		t.Error("ssh is still open for a key that the card does not name any more")
	}
	if tr.text(secretPath) == "" || tr.text(wifiDir+"/lab.psk") == "" || !strings.Contains(tr.text(config.DefaultPath), "cpu: 10%") || tr.text("/etc/rivulet/campus.kubeconfig") == "" {
		t.Errorf("%v", tr.all())
	}

	fill(t, tr, map[string]string{config.DefaultPath: "share: {cpu: 7%}\n", bootDir + "/" + config.CardName: "share: {cpu: 20%}\n"})
	if n := tr.run(); len(n.Problems) != 1 || !strings.Contains(n.Problems.Error(), "was changed on the device") || tr.text(config.DefaultPath) != "share: {cpu: 7%}\n" {
		t.Errorf("%+v %q", n, tr.text(config.DefaultPath))
	}

	// The same card in another device, which has no secret.
	other := newTree(t, map[string]string{bootDir + "/" + config.CardName: left})
	n := other.run()
	said := ""
	for _, p := range n.Problems {
		said += p.Error() + "\n"
	}
	for _, want := range []string{"the group's secret was moved into another device", "\"lab\" was moved into another device", "no file campus.kubeconfig"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in %q", want, said)
		}
	}
}

// A boot partition that cannot be written or read is told, and the device boots.
func TestABadBootPartition(t *testing.T) {
	tr := newTree(t, full())
	dev := tr.device()
	dev.Open = func() (func(), error) { return nil, errors.New("it is read-only") }
	n, err := Run(dev)
	if err != nil || !strings.Contains(n.Problems.Error(), "remove the secrets from rivulet.yaml yourself") || tr.text(secretPath) == "" {
		t.Errorf("%+v %v", n, err)
	}
	tr = newTree(t, map[string]string{bootDir + "/" + config.CardName + "/folder": ""})
	if n := tr.run(); !strings.Contains(n.Problems.Error(), "cannot be read") || n.Hostname == "" || tr.text(hostnamePath) != n.Hostname+"\n" {
		t.Errorf("%+v", n)
	}
	if err := os.RemoveAll(filepath.Join(tr.root, bootDir)); err != nil {
		t.Fatal(err)
	}
	if n := tr.run(); len(n.Problems) > 0 {
		t.Errorf("the partition is gone: %+v", n)
	}
}

// A file that was tidied away takes nothing back.
func TestTheCardIsTidiedUp(t *testing.T) {
	tr := newTree(t, full())
	tr.run()
	card := filepath.Join(tr.root, bootDir, config.CardName)
	raw, err := os.ReadFile(card)
	if err := errors.Join(err, os.Remove(card)); err != nil {
		t.Fatal(err)
	}
	before := tr.all()
	tr.run()
	same(t, "without the file", tr.all(), before)
	if err := os.WriteFile(card, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	if n := tr.run(); len(n.Problems) > 0 || tr.text(secretPath) == "" {
		t.Errorf("the file is back: %+v", n)
	}
}

// A PC hides the endings of names, and an editor adds its own: the file is taken, and gets its name; a second one is
// told, until it is gone.
func TestAFileByAnotherName(t *testing.T) {
	want := newTree(t, full())
	want.run()
	named := func(name string) map[string]string {
		files := full()
		delete(files, bootDir+"/"+config.CardName)
		files[bootDir+"/"+name] = card
		return files
	}
	for _, name := range []string{"rivulet.yaml.txt", "rivulet.yml", "Rivulet.YAML.yaml", "rivulet.yml.txt"} {
		tr := newTree(t, named(name))
		if n := tr.run(); len(n.Problems) > 0 {
			t.Errorf("%s: %v", name, n.Problems)
		}
		same(t, name, tr.all(), want.all())
	}
	for _, name := range []string{"rivulet.txt", "rivulet.yaml.example", "rivulet.yaml.bak", "my-rivulet.yaml", "rivulet.yaml.txt/folder"} {
		if tr := newTree(t, named(name)); !strings.HasPrefix(tr.run().Hostname, "rivulet-") || tr.text(bootDir+"/"+name) == "" {
			t.Errorf("%s is taken", name)
		}
	}

	tr := newTree(t, full())
	tr.run()
	fill(t, tr, map[string]string{bootDir + "/rivulet.yaml.txt": "name: bench-8\n"})
	for range 2 {
		n, told := tr.run(), tr.text(bootDir+"/"+ErrorName)
		if len(n.Problems) != 1 || n.Hostname != "bench-7" || !strings.Contains(told, "rivulet.yaml.txt: it is not read, because rivulet.yaml is there, too") {
			t.Errorf("%+v, told %q", n, told)
		}
	}
	if err := os.Remove(filepath.Join(tr.root, bootDir, "rivulet.yaml.txt")); err != nil {
		t.Fatal(err)
	}
	tr.run()
	same(t, "without the second file", tr.all(), want.all())
	fill(t, tr, map[string]string{bootDir + "/rivulet.yml": tr.text(bootDir + "/" + config.CardName)})
	if err := os.Remove(filepath.Join(tr.root, bootDir, config.CardName)); err != nil {
		t.Fatal(err)
	}
	tr.run()
	same(t, "the same content by another name", tr.all(), want.all())

	dev := newTree(t, named("rivulet.yml")).device()
	dev.Open = func() (func(), error) { return nil, errors.New("it is read-only") }
	if n, err := Run(dev); err != nil || n.Hostname != "bench-7" || !strings.Contains(n.Problems.Error(), "remove the secrets from rivulet.yml yourself") {
		t.Errorf("a partition that cannot be written: %+v %v", n, err)
	}
}

// Power cuts between any two steps, and in the middle of writes, as often as may be:
// the boot that is not cut ends where one without cuts does. A secret is on the device
// before it leaves the card.
func TestPowerCuts(t *testing.T) {
	uncut := newTree(t, full())
	uncut.run()
	want := uncut.all()
	base, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		files := full()
		if rapid.Bool().Draw(rt, "by another name") {
			files[bootDir+"/rivulet.yaml.txt"] = files[bootDir+"/"+config.CardName]
			delete(files, bootDir+"/"+config.CardName)
		}
		tr := fill(rt, tree{t, filepath.Join(base, "run", strings.Repeat("i", n%7), rapidName(n))}, files)
		for range rapid.IntRange(1, 4).Draw(rt, "cuts") {
			left := rapid.IntRange(0, 150).Draw(rt, "steps until the cut")
			durable.Failpoint = func(step, path string) error {
				if left--; left >= 0 {
					return nil
				}
				if fi, err := os.Stat(path); left == -1 && step == durable.Sync && err == nil {
					if err := os.Truncate(path, fi.Size()/2); err != nil { // what is not synced may be lost
						rt.Fatal(err)
					}
				}
				return durable.ErrCut
			}
			_, err := Run(tr.device())
			durable.Failpoint = nil
			if err != nil && !errors.Is(err, durable.ErrCut) {
				rt.Fatal(err)
			}
			if rapid.Bool().Draw(rt, "FAT loses the old name first") {
				loseOld(tr, want)
			}
			whole := ""
			for name, file := range tr.all() {
				if !strings.HasSuffix(name, ".new") || strings.HasPrefix(name, bootDir) {
					whole += file
				}
			}
			for _, s := range secrets {
				if !strings.Contains(whole, s) {
					rt.Fatalf("%q is lost", s)
				}
			}
		}
		if _, err := Run(tr.device()); err != nil {
			rt.Fatal(err)
		}
		same(rt, "after the cuts", tr.all(), want)
		os.RemoveAll(tr.root)
	})
}

func rapidName(n int) string { return "t" + strings.Repeat("x", n%50) + string(rune('a'+n%26)) }

// loseOld is a rename on FAT that was cut between its two halves: the whole new file
// is there by its new name alone.
func loseOld(tr tree, want map[string]string) {
	for name := range campus() {
		path := filepath.Join(tr.root, bootDir, NetworkFolder, name)
		if raw, err := os.ReadFile(path + ".new"); err == nil && strings.HasSuffix(want[bootDir+"/network/"+name], " "+string(raw)) {
			os.Remove(path)
		}
	}
	path := filepath.Join(tr.root, bootDir, config.CardName)
	raw, err := os.ReadFile(path + ".new")
	if err != nil {
		return
	}
	if _, p := config.ParseCard(raw, config.Options{}); len(p.Problems) == 0 && strings.Count(string(raw), config.Moved) == 3 && strings.HasSuffix(string(raw), "campus.kubeconfig\n") {
		os.Remove(path)
	}
}

// What an owner has added to the names stays at each boot, and when the device gets another name.
func TestNamesOfTheOwnerStay(t *testing.T) {
	const ours, theirs = "127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost ip6-localhost ip6-loopback\n", "# the cellar\n192.168.1.5 nas nas.lan\n"
	first := fmt.Sprintf(ours, "lab-1")
	for has, want := range map[string]string{
		"":                              first,
		first:                           first,
		first + theirs:                  first + theirs,
		fmt.Sprintf(ours, "x") + theirs: first + theirs,
		"127.0.1.1\tdebian\n" + theirs:  first + theirs,
		"192.168.1.5 nas":               first + "192.168.1.5 nas\n",
	} {
		if got := hosts(has, "lab-1"); got != want {
			t.Errorf("of %q: %q, want %q", has, got, want)
		}
	}
}
