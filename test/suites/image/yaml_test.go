package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/config"
)

const yamlSecret, yamlWiFi = "seventeen-letters-at-least", "a-word-for-the-radio"

// What rivulet.yaml on the boot partition says is taken: the name, whom to trust, Wi-Fi,
// a key for ssh. Its secrets are the device's afterwards, also when power is cut at the
// moment they move.
func TestTheCardSaysWhatToBe(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	key := filepath.Join(t.TempDir(), "key")
	tool(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@desk", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	d := disk(t, packed, "2G")
	setFAT(t, d, config.CardName, `name: bench-7
trust: {mode: group, secret: `+yamlSecret+`}
share: {cpu: 50%}
wifi:
  country: "DE"
  networks: [{ssid: lab, password: `+yamlWiFi+`}]
ssh:
  keys: ["`+strings.TrimSpace(string(public))+`"]
`)
	l := newLAN(t)
	plug := l.plug("tap0", 1)
	m := l.on(d, plug...)
	m.says(`root@\S+#`) // the shell is there before firstboot has ended: the cut comes about when it works
	m.cut()

	m = l.on(d, plug...)
	m.up()
	for _, c := range []struct{ ask, want string }{
		{"hostname", "bench-7"},
		{"cat /etc/rivulet/group.secret", yamlSecret},
		{"grep -h Passphrase /var/lib/iwd/lab.psk", "Passphrase=" + yamlWiFi},
		{"stat -c '%a %u' /etc/rivulet/group.secret /var/lib/iwd/lab.psk /root/.ssh/authorized_keys | sort -u", "600 0"},
		{"ls /boot/firmware | grep -c error", "0"},
		{"grep -c -e " + yamlSecret + " -e " + yamlWiFi + " /boot/firmware/rivulet.yaml", "0"},
		{"grep -c moved /boot/firmware/rivulet.yaml", "2"},
		{"grep -c 50% /etc/rivulet/config.yaml", "1"},
		{"findmnt -no OPTIONS /boot/firmware | grep -o '^r[ow]'", "ro"},
	} {
		if got := m.ask(c.ask); got != c.want {
			t.Errorf("%s: %q, want %q", c.ask, got, c.want)
		}
	}
	// With the key and without it.
	address := m.until("ip -o -4 addr show dev eth0 scope link | awk '{print $4}' | cut -d/ -f1", `^169\.254\.`)
	m.until("systemctl is-active ssh.service", "^active$")
	ssh := func(more ...string) (string, error) {
		cmd := exec.Command("ssh", append([]string{"-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes",
			"-o", "ConnectTimeout=120", "-o", "LogLevel=ERROR"}, append(more, "root@"+address, "hostname")...)...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := l.room.Try(cmd.Start); err != nil {
			return "", err
		}
		if err := cmd.Wait(); err != nil {
			return out.String(), errors.New(err.Error() + ": " + errs.String())
		}
		return strings.TrimSpace(out.String()), nil
	}
	if out, err := ssh("-o", "BatchMode=yes", "-i", key); err != nil || out != "bench-7" {
		t.Errorf("with the key: %q, %v", out, err)
	}
	other := filepath.Join(t.TempDir(), "other")
	tool(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
	if out, err := ssh("-o", "BatchMode=yes", "-i", other); err == nil || !strings.Contains(err.Error(), "Permission denied (publickey)") {
		t.Errorf("with another key: %q, %v", out, err)
	}
	l.page(m, "bench-7")
	m.ask("sync")
	m.cut()
	if left := fat(t, d, config.CardName); strings.Contains(left, yamlSecret) || strings.Contains(left, yamlWiFi) || !strings.Contains(left, "ssid: lab") {
		t.Errorf("the card is left as:\n%s", left)
	}
}

// A card with mistakes: the device boots with what is right, and says what is wrong and
// where, on the page, on the screen, in `rivulet status` and beside the file.
func TestAWrongCard(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	d := disk(t, packed, "2G")
	setFAT(t, d, config.CardName, "name: shelf-3\nshare: {cpu: 50}\nwfi: {}\n")
	l := newLAN(t)
	m := l.on(d, l.plug("tap0", 1)...)
	m.up()
	const where = "rivulet.yaml:2:14"
	for place, text := range map[string]string{
		"page":   l.page(m, "shelf-3"),
		"status": m.until("rivulet status", "firstboot"),
		"file":   m.ask("cat /boot/firmware/rivulet.yaml.error.txt"),
		"screen": m.until("fold -w 80 /dev/vcs1 | tr -d '\\n'", where),
	} {
		if !strings.Contains(text, where) || !strings.Contains(text, "lacks the %") || !strings.Contains(text, "wfi") {
			t.Errorf("%s does not say it:\n%s", place, text)
		}
	}
	t.Logf("the screen:\n%s", m.screen())
	if got := m.ask("systemctl is-active ssh.service"); got != "inactive" {
		t.Errorf("ssh is %s without a key", got)
	}
}
