package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// The life of a service, from the first `rivulet install` to the last trace gone.
func TestService(t *testing.T) {
	ctx := need(t, 8*time.Minute)
	t.Parallel()
	a := devices["a"]
	// A binary of `make slim` needs the full one beside it.
	labtest.Output(t, ctx, a, "sh", "-c", "! test -e /opt/rivulet/rivulet-full || ln -s /opt/rivulet/rivulet-full /usr/local/bin/")
	before := traces(t, ctx, a)

	t.Run("install: active when the supervisor says so", func(t *testing.T) {
		out := labtest.Output(t, ctx, a, "/opt/rivulet/rivulet", "install", "--name", "shelf-1")
		for _, want := range []string{"/usr/local/bin/rivulet", "/etc/systemd/system/rivulet.service", "/etc/sysctl.d/90-rivulet.conf",
			"/etc/systemd/journald.conf.d/90-rivulet.conf", "/etc/systemd/system.conf.d/90-rivulet.conf", "rivulet.service was started"} {
			if !strings.Contains(out, want) {
				t.Errorf("install does not tell of %s:\n%s", want, out)
			}
		}
		unit := show(t, ctx, a)
		for key, want := range map[string]string{"ActiveState": "active", "Type": "notify", "NotifyAccess": "main", "KillMode": "process", "Delegate": "yes",
			"Restart": "always", "WatchdogUSec": "1min", "UnitFileState": "enabled", "LockPersonality": "yes"} {
			if unit[key] != want {
				t.Errorf("%s is %q, want %q", key, unit[key], want)
			}
		}
		if !strings.HasPrefix(unit["StatusText"], "Starting: ") && !strings.HasPrefix(unit["StatusText"], "Ready") {
			t.Errorf("status text %q", unit["StatusText"])
		}
		if strings.Contains(unit["After"], "network-online.target") {
			t.Errorf("it waits for a network: %s", unit["After"])
		}
	})
	t.Run("install again changes nothing", func(t *testing.T) {
		pid := show(t, ctx, a)["MainPID"]
		var steps []struct {
			What    string
			Changed bool
		}
		if err := json.Unmarshal([]byte(labtest.Output(t, ctx, a, "rivulet", "install", "-o", "json")), &steps); err != nil || len(steps) < 6 {
			t.Fatalf("%v %v", steps, err)
		}
		for _, s := range steps {
			if s.Changed {
				t.Errorf("changed: %s", s.What)
			}
		}
		if now := show(t, ctx, a)["MainPID"]; now != pid {
			t.Error("the service was restarted")
		}
	})

	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{a}); err != nil {
		t.Fatal(err)
	}
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "create", "deployment", "web", "--image="+mainjob.Image, "--replicas=2")
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "wait", "--for=condition=Available", "deployment/web", "--timeout=90s")
	pods := containers(t, ctx, a)
	unchanged := func(t *testing.T) {
		t.Helper()
		if err := a.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, ctx, 0, "the same containers", func() error {
			if now := containers(t, ctx, a); now != pods {
				return fmt.Errorf("%s, were %s", now, pods)
			}
			return nil
		})
	}

	t.Run("status in words and times since boot", func(t *testing.T) {
		await.NoError(t, ctx, 0, "systemd knows that it is Ready", func() error {
			if text := show(t, ctx, a)["StatusText"]; !strings.HasPrefix(text, "Ready (after ") {
				return fmt.Errorf("status text %q", text)
			}
			return nil
		})
		var st struct {
			ReadyAfter, ReadyAfterBoot time.Duration
			Stages                     []struct {
				Name            string
				Took, SinceBoot time.Duration
			}
		}
		if err := json.Unmarshal([]byte(labtest.Output(t, ctx, a, "rivulet", "status", "-o", "json")), &st); err != nil {
			t.Fatal(err)
		}
		if st.ReadyAfter <= 0 || st.ReadyAfterBoot < st.ReadyAfter {
			t.Errorf("ready after %s, %s after boot", st.ReadyAfter, st.ReadyAfterBoot)
		}
		for _, s := range st.Stages {
			if s.Took > 0 && (s.Took > st.ReadyAfterBoot+time.Hour || s.SinceBoot < s.Took) {
				t.Errorf("stage %+v", s)
			}
		}
	})
	t.Run("restart: pods do not notice", func(t *testing.T) {
		// From here on the watchdog has less patience, so that the next test need not have it.
		labtest.Output(t, ctx, a, "sh", "-c", `mkdir -p /etc/systemd/system/rivulet.service.d
			printf '[Service]\nWatchdogSec=12\n' >/etc/systemd/system/rivulet.service.d/test.conf; systemctl daemon-reload`)
		was := show(t, ctx, a)["MainPID"]
		labtest.Output(t, ctx, a, "systemctl", "restart", "rivulet")
		if show(t, ctx, a)["MainPID"] == was {
			t.Error("the supervisor is the same")
		}
		unchanged(t)
	})
	t.Run("a supervisor that hangs is started again by the watchdog", func(t *testing.T) {
		was := show(t, ctx, a)
		labtest.Output(t, ctx, a, "kill", "-STOP", was["MainPID"])
		begun := time.Now()
		await.NoError(t, ctx, 0, "systemd has started it again", func() error {
			now := show(t, ctx, a)
			if now["MainPID"] == was["MainPID"] || now["ActiveState"] != "active" {
				return fmt.Errorf("state %s, result %s", now["ActiveState"], now["Result"])
			}
			return nil
		})
		// 12 s of patience, up to 3 s since it was last fed, and the restart.
		if d := time.Since(begun); d > 45*time.Second {
			t.Errorf("it took %s", d)
		}
		// What systemd's watchdog sends makes a Go program tell where it hung.
		if log := labtest.Output(t, ctx, a, "journalctl", "--no-pager", "-u", "rivulet"); !strings.Contains(log, "SIGABRT: abort") {
			t.Error("it was not the watchdog that started it again")
		}
		unchanged(t)
	})
	t.Run("shut down: containers are asked to end, and begin again", func(t *testing.T) {
		labtest.Output(t, ctx, a, "rivulet", "end-pods")
		unchanged(t) // the machine goes on
		labtest.Output(t, ctx, a, "sh", "-c", `mkdir -p /run/fake && printf '#!/bin/sh\necho stopping; exit 1\n' >/run/fake/systemctl && chmod +x /run/fake/systemctl
			PATH=/run/fake:$PATH rivulet end-pods`)
		await.NoError(t, ctx, 0, "both have ended, and run again", func() error {
			out, err := a.Kubectl(ctx, "get", "pods", "-o", `jsonpath={range .items[*]}{.status.containerStatuses[0].lastState.terminated.exitCode} {.status.containerStatuses[0].ready}{"\n"}{end}`)
			if strings.Contains(out, "137 ") {
				t.Fatalf("killed: %s", out)
			}
			if strings.Count(out, " true") != 2 || strings.HasPrefix(out, " ") || strings.Contains(out, "\n ") {
				return fmt.Errorf("%q %w", out, err)
			}
			return err
		})
	})
	t.Run("boot: the service comes up by itself, with its pods", func(t *testing.T) {
		if err := a.Kill(ctx, "power"); err != nil {
			t.Fatal(err)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "wait", "--for=condition=Available", "deployment/web", "--timeout=90s")
		if pods := strings.Fields(containers(t, ctx, a)); len(pods) != 2 {
			t.Errorf("%d pods, want the two of before", len(pods))
		}
		if out := labtest.Output(t, ctx, a, "rivulet", "status"); !strings.HasPrefix(out, "shelf-1 ") {
			t.Errorf("the name is not that of install: %s", out)
		}
	})
	t.Run("uninstall without the supervisor, half of it missing, with pods running", func(t *testing.T) {
		if out, err := a.Run(ctx, "rivulet", "uninstall"); err == nil || !strings.Contains(err.Error(), "--yes") {
			t.Errorf("it did not ask: %v %s", err, out)
		}
		labtest.Output(t, ctx, a, "sh", "-c", `rm -r /etc/systemd/system/rivulet.service.d/test.conf /run/rivulet/rivulet.sock /run/rivulet/tunnel.pid
			rm /etc/systemd/system/rivulet.service /usr/local/bin/rivulet; systemctl daemon-reload; kill -KILL `+show(t, ctx, a)["MainPID"])
		out := labtest.Output(t, ctx, a, "/opt/rivulet/rivulet", "uninstall", "--purge", "--yes")
		t.Log(out)
		same(t, "purged", before, traces(t, ctx, a))
		if out := labtest.Output(t, ctx, a, "/opt/rivulet/rivulet", "uninstall", "--purge", "--yes"); !strings.Contains(out, "nothing was there") {
			t.Errorf("a second time: %s", out)
		}
	})
	t.Run("reset --factory, with the unit elsewhere than in /etc", func(t *testing.T) {
		defer func() { labtest.Output(t, ctx, a, "rm", "-f", "/run/systemd/system/rivulet.service") }()
		labtest.Output(t, ctx, a, "/opt/rivulet/rivulet", "install")
		labtest.Output(t, ctx, a, "sh", "-c", "mkdir -p /run/systemd/system && mv /etc/systemd/system/rivulet.service /run/systemd/system/ && systemctl daemon-reload")
		who := func() string {
			return labtest.Output(t, ctx, a, "sh", "-c", "rivulet status -o json | grep -o '\"id\":\"[a-z0-9]*\"' | head -1")
		}
		pid, was := show(t, ctx, a)["MainPID"], who()
		t.Log(labtest.Output(t, ctx, a, "rivulet", "reset", "--factory", "--yes"))
		if unit := show(t, ctx, a); unit["MainPID"] == pid || unit["NRestarts"] != "0" || unit["ActiveState"] != "active" {
			t.Errorf("pid %s, was %s, %s, started again %s times", unit["MainPID"], pid, unit["ActiveState"], unit["NRestarts"])
		}
		if is := who(); is == was || !strings.Contains(is, "id") {
			t.Errorf("identity %s, was %s", is, was)
		}
		labtest.Output(t, ctx, a, "rivulet", "uninstall", "--purge", "--yes")
	})
	t.Run("install --no-start, and uninstall of what never ran", func(t *testing.T) {
		labtest.Output(t, ctx, a, "/opt/rivulet/rivulet", "install", "--no-start")
		if unit := show(t, ctx, a); unit["ActiveState"] != "inactive" || unit["UnitFileState"] != "enabled" {
			t.Errorf("%s, %s", unit["ActiveState"], unit["UnitFileState"])
		}
		labtest.Output(t, ctx, a, "rivulet", "uninstall", "--yes")
		same(t, "uninstalled", before, traces(t, ctx, a))
	})
}

// show returns the properties of the unit.
func show(t *testing.T, ctx context.Context, d *lab.Device) map[string]string {
	t.Helper()
	props := map[string]string{}
	for line := range strings.Lines(labtest.Output(t, ctx, d, "systemctl", "show", "rivulet.service")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		props[key] = value
	}
	return props
}

// containers names those of all pods of namespace default, with their restarts.
func containers(t *testing.T, ctx context.Context, d *lab.Device) string {
	t.Helper()
	out, err := d.Kubectl(ctx, "get", "pods", "-o", "json")
	if err != nil {
		return err.Error()
	}
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(out), &pods); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			names = append(names, c.ContainerID+"/"+strconv.Itoa(int(c.RestartCount)))
		}
	}
	return strings.Join(names, " ")
}
