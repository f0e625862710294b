package systemd

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"rivulet/image/filesum"
	"rivulet/image/signed"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/tree"
)

// Before a package is there: Debian's databases, empty; a /usr/share, /usr/local and /usr/bin that can be written; and the
// programs without those of packages, for a system that has another tool or none. Debian's rpm wants to be told
// that it is meant.
const packageTools = `set -e
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers /var/lib/rpm /tmp/bare /tmp/rpm
touch /var/lib/dpkg/available
for p in coreutils mount kmod; do printf 'Package: %s\nStatus: install ok installed\nMaintainer: nobody\nArchitecture: amd64\nVersion: 1\nDescription: has /usr/bin, which stays, or is what ours depends on\n\n' $p; done >/var/lib/dpkg/status
printf '/.\n/usr\n/usr/bin\n/usr/lib\n/usr/lib/systemd\n/usr/lib/systemd/system\n/usr/lib/sysctl.d\n/usr/sbin\n' >/var/lib/dpkg/info/coreutils.list
for p in mount kmod; do echo /. >/var/lib/dpkg/info/$p.list; done
for d in share local bin sbin lib/systemd/system lib/sysctl.d; do
	mkdir -p /tmp/$d/up /tmp/$d/work
	mount -t overlay overlay -o lowerdir=/usr/$d,upperdir=/tmp/$d/up,workdir=/tmp/$d/work /usr/$d
done
rm -f /usr/sbin/policy-rc.d # a container of Debian has one that denies every start
cd /tmp/bare
ln -s /usr/bin/* /usr/sbin/* . 2>/dev/null || true
rm -f dpkg rpm
printf '#!/bin/sh\nexec /usr/bin/rpm --force-debian --dbpath /var/lib/rpm "$@"\n' >/tmp/rpm/rpm
chmod +x /tmp/rpm/rpm
rpm --initdb --dbpath /var/lib/rpm`

// newer has the second version.
const newer = "/opt/rivulet/package-test/v0.0.2/"

// packaging is a way to get Rivulet onto a system: what is on the PATH, and the commands of a package's life.
type packaging struct {
	name, path, upgrade, installed, remove, purge string
	again                                         string // installs the newer one over itself; empty: it is no package, and its removal keeps nothing
}

// A package's life, by each tool: install.sh with a signed release, the service runs; a newer one, pods go on
// and the cluster is the same; removed, nothing is left but the state; installed again, the same cluster;
// purged, nothing at all.
func TestPackages(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the names of packages below are those of amd64")
	}
	made := filepath.Join(filepath.Dir(labtest.Binary()), "package-test")
	if _, err := os.Stat(made); err != nil {
		t.Skipf("needs %s: make package-test", made)
	}
	ctx := need(t, 10*time.Minute)
	t.Parallel()
	c := devices["c"]
	labtest.Output(t, ctx, c, "sh", "-c", packageTools)
	release(t, ctx, c, made)
	for _, p := range []packaging{
		{"deb", "/usr/sbin:/usr/bin", "dpkg -i " + newer + "*.deb", "dpkg -l rivulet | grep '^ii .* 0\\.0\\.2 '", "dpkg -r rivulet", "dpkg --purge rivulet", "dpkg -i " + newer + "*.deb"},
		{"rpm", "/tmp/rpm:/tmp/bare", "rpm -U " + newer + "*.rpm", "rpm -q rivulet | grep 0\\.0\\.2", "rpm -e rivulet", "rpm -e rivulet; rm -r /var/lib/rivulet /etc/rivulet", "rpm -U --replacepkgs " + newer + "*.rpm"},
		{"the binary", "/tmp/bare", newer + "rivulet install", "cmp /usr/local/bin/rivulet " + newer + "rivulet", "", "rivulet uninstall --purge --yes", ""},
	} {
		if !t.Run(p.name, func(t *testing.T) { p.life(t, ctx, c) }) {
			return // what is left would be taken for the next one's
		}
	}
}

func (p packaging) life(t *testing.T, ctx context.Context, c *lab.Device) {
	sh := func(script string) string {
		t.Helper()
		return labtest.Output(t, ctx, c, "sh", "-c", "export PATH="+p.path+":/usr/local/bin\n"+script)
	}
	before, files := traces(t, ctx, c), shared(t, ctx, c)
	started := func() string {
		t.Helper()
		unit := show(t, ctx, c)
		if unit["ActiveState"] != "active" || unit["UnitFileState"] != "enabled" {
			t.Fatalf("the service is %s, %s", unit["ActiveState"], unit["UnitFileState"])
		}
		if err := c.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		return unit["MainPID"]
	}
	cluster := func() string {
		t.Helper()
		return labtest.Output(t, ctx, c, "rivulet", "kubectl", "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
	}

	if p.again != "" { // what was installed by hand would hide the package
		sh("/opt/rivulet/package-test/v0.0.1/rivulet install --no-start; echo '# mine' >>/etc/systemd/system/rivulet.service")
	}
	if out := sh("sh /root/release/install.sh"); !strings.Contains(out, "Rivulet is installed; see: sudo rivulet status") {
		t.Errorf("install.sh ends with:\n%s", out)
	}
	pid, uid := started(), cluster()
	if p.again != "" {
		sh(`[ "$(systemctl show --property FragmentPath --value rivulet)" = /usr/lib/systemd/system/rivulet.service ]
			! [ -e /usr/local/bin/rivulet ] && [ "$(command -v rivulet)" = /usr/bin/rivulet ]
			grep -q '^# mine' /etc/systemd/system/rivulet.service.before-package && rm /etc/systemd/system/rivulet.service.before-package`)
		if out := sh(newer + "rivulet install 2>&1 || true"); !strings.Contains(out, "has installed Rivulet here from a package") {
			t.Errorf("a binary was installed over the package:\n%s", out)
		}
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{c}); err != nil {
		t.Fatal(err)
	}
	labtest.Output(t, ctx, c, "rivulet", "kubectl", "create", "deployment", "web", "--image="+mainjob.Image)
	labtest.Output(t, ctx, c, "rivulet", "kubectl", "wait", "--for=condition=Available", "deployment/web", "--timeout=90s")
	pods := containers(t, ctx, c)

	sh(p.upgrade)
	sh(p.installed)
	if now := started(); now == pid {
		t.Error("the service still is the older program's")
	}
	await.NoError(t, ctx, 0, "the same containers", func() error {
		if now := containers(t, ctx, c); now != pods {
			return fmt.Errorf("%s, were %s", now, pods)
		}
		return nil
	})
	if p.again != "" {
		sh(p.remove)
		left := traces(t, ctx, c)
		if !left["file: /var/lib/rivulet/state.db"] {
			t.Error("the state went with the package")
		}
		same(t, "removed", but(before), but(left, "file: /var/lib/rivulet", "file: /etc/rivulet"))
		same(t, "removed", files, shared(t, ctx, c))
		sh(p.upgrade)
		if started(); cluster() != uid {
			t.Error("the cluster is another one")
		}
		sh("systemctl disable --now rivulet; rm /etc/systemd/journald.conf.d/90-rivulet.conf; " + p.again)
		if unit := show(t, ctx, c); unit["ActiveState"] != "inactive" || unit["UnitFileState"] != "disabled" {
			t.Errorf("an upgrade made a stopped, disabled service %s, %s", unit["ActiveState"], unit["UnitFileState"])
		}
		sh("! [ -e /etc/systemd/journald.conf.d/90-rivulet.conf ]")
		deny := "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; "
		sh(p.remove + "; " + deny + p.upgrade + "; rm /usr/sbin/policy-rc.d")
		if unit := show(t, ctx, c); unit["ActiveState"] != "inactive" || unit["UnitFileState"] != "enabled" {
			t.Errorf("where policy-rc.d denies the start, the service is %s, %s", unit["ActiveState"], unit["UnitFileState"])
		}
	}
	sh(p.purge)
	same(t, "purged", but(before), but(traces(t, ctx, c)))
	same(t, "purged", files, shared(t, ctx, c))
}

// shared are the files of /usr: the program, its unit, man pages, completions.
func shared(t *testing.T, ctx context.Context, d *lab.Device) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(labtest.Output(t, ctx, d, "find", "/usr/bin", "/usr/lib/systemd/system", "/usr/lib/sysctl.d", "/usr/share/man/man1", "/usr/share/bash-completion", "/usr/share/doc", "-name", "*rivulet*")) {
		seen[strings.TrimSpace(line)] = true
	}
	return seen
}

// but leaves out what begins so, and the databases of packages.
func but(all map[string]bool, begins ...string) map[string]bool {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(line string, _ bool) bool {
		for _, b := range append(begins, "file: /var/lib/dpkg/", "file: /var/log/dpkg.log", "file: /var/lib/rpm/") {
			if strings.HasPrefix(line, b) {
				return true
			}
		}
		return false
	})
	return out
}

// release makes a signed release of version 0.0.1 in /root/release of a device.
func release(t *testing.T, ctx context.Context, d *lab.Device, made string) {
	t.Helper()
	labtest.Output(t, ctx, d, "sh", "-c", `mkdir /root/release && cd /root/release && ln -s /opt/rivulet/package-test/v0.0.1/rivulet[_-]* . &&
		zstd -q -1 /opt/rivulet/package-test/v0.0.1/rivulet -o rivulet-v0.0.1-linux-amd64.zst`)
	root, rootKey, _ := ed25519.GenerateKey(nil)
	key, signing, _ := ed25519.GenerateKey(nil)
	files, err := filepath.Glob(filepath.Join(made, "v0.0.1", "rivulet*.[dr][ep][bm]"))
	if err != nil || len(files) != 2 {
		t.Fatalf("packages %v, %v", files, err)
	}
	var sums strings.Builder
	for _, f := range append(files, d.Path("/root/release/rivulet-v0.0.1-linux-amd64.zst")) {
		sum, _, err := filesum.SHA256(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, filepath.Base(f))
	}
	script, err := os.ReadFile(tree.Path("image", "package", "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	digest := signed.NewDigest()
	digest.Write([]byte(sums.String()))
	signature, err := json.Marshal(signed.Sign(signing, signed.Certify(rootKey, key, 1), digest))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"SHA256SUMS": sums.String(), "SHA256SUMS.sig": string(signature),
		"install.sh": strings.Replace(string(script), "\nROOT_KEYS=\nMIN_GENERATION=\n", "\nROOT_KEYS="+base64.StdEncoding.EncodeToString(root)+"\nMIN_GENERATION=1\n", 1),
	} {
		if err := os.WriteFile(d.Path("/root/release/"+name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
