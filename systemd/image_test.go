package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImageHasAllThatAnInstallationHas(t *testing.T) {
	has := map[string]string{}
	for _, f := range ImageFiles() {
		if has[f.Path] != "" || f.Content == "" {
			t.Errorf("%s is there twice, or empty", f.Path)
		}
		has[f.Path] = f.Content
	}
	for _, want := range []struct{ path, line string }{
		{"/usr/lib/systemd/system/rivulet.service", "ExecStart=" + Binary + " run"},
		{"/usr/lib/systemd/system/rivulet.service", "WatchdogSec=60"},
		{"/usr/lib/systemd/system.conf.d/90-rivulet.conf", "RuntimeWatchdogSec=15"},
		{"/usr/lib/sysctl.d/90-rivulet.conf", "kernel.panic = 10"},
		{"/usr/lib/systemd/system/rivulet.service.d/reboot.conf", "StartLimitAction=reboot"},
		{"/usr/lib/systemd/system/ssh.service.d/rivulet.conf", "ConditionFileNotEmpty=/root/.ssh/authorized_keys"},
		{"/etc/ssh/sshd_config.d/10-rivulet.conf", "PasswordAuthentication no"},
		{"/usr/lib/systemd/system/rivulet-firstboot.service", "ConditionPathExists=" + ImageMark},
		{"/usr/lib/systemd/system/rivulet-firstboot.service", "Before=network-pre.target iwd.service ssh.service rivulet.service"},
		{"/usr/lib/systemd/system/rivulet-console@.service", "TTYPath=/dev/%I"},
		{"/usr/lib/systemd/system-preset/10-rivulet.preset", "enable rivulet-console@.service tty1"},
	} {
		if !strings.Contains(has[want.path], want.line+"\n") {
			t.Errorf("%s lacks %s", want.path, want.line)
		}
	}
	for path, text := range has {
		if strings.Contains(text, "network-online") {
			t.Errorf("%s waits for a network", path)
		}
		if strings.Contains(text, "hung_task_panic") {
			t.Errorf("%s has the device start again for a NAS that is off", path)
		}
	}
	names, err := imageFiles.ReadDir("image")
	if err != nil || len(names) != len(imagePaths) {
		t.Errorf("%d files are embedded, %d have a place: %v", len(names), len(imagePaths), err)
	}
}

// All units at once, with their settings: no unknown word, no cycle in their order.
func TestSystemdUnderstandsTheImage(t *testing.T) {
	root := t.TempDir()
	var args []string
	for _, f := range ImageFiles() {
		path := filepath.Join(root, filepath.Base(f.Path))
		if strings.HasSuffix(filepath.Dir(f.Path), "rivulet.service.d") {
			path = filepath.Join(root, "rivulet.service.d", filepath.Base(f.Path))
		} else if !strings.HasSuffix(f.Path, ".service") {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(f.Content, Binary, "/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f.Path, ".service") {
			args = append(args, strings.Replace(path, "@.", "@tty1.", 1))
		}
	}
	for line := range strings.Lines(analyze(t, append([]string{"verify", "--man=no"}, args...)...)) {
		// systemd 254 and later know these; the image's is, a build machine's may not be.
		if !strings.Contains(line, "RestartSteps") && !strings.Contains(line, "RestartMaxDelaySec") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
}
