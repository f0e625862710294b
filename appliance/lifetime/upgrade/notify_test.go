package upgrade

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the version that is tried says reaches systemd, but not that the service
// stops when only that version does; the watchdog is fed by the judge.
func TestNotificationsArePassedOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "systemd.sock")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	systemd.SetReadDeadline(time.Now().Add(10 * time.Second))
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "150000")
	t.Setenv("WATCHDOG_PID", "1")
	n := startNotify(dir, discard)
	defer n.close()
	env := strings.Join(childEnv(os.Environ(), "v2", n), "\n") + "\n"
	if strings.Contains(env, "WATCHDOG") || !strings.Contains(env, TrialEnv+"=v2\n") || !strings.Contains(env, "NOTIFY_SOCKET="+n.path+"\n") || strings.Contains(env, path+"\n") {
		t.Errorf("the child's environment: %s", env)
	}
	child, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	for _, m := range []string{"READY=1\nMAINPID=7", "STOPPING=1\nSTATUS=Stopping", "STOPPING=1", "STATUS=last"} {
		if _, err := child.Write([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	fed := 0
	for buf := make([]byte, 1000); fed < 2 || len(got) < 3; {
		size, err := systemd.Read(buf)
		if err != nil {
			t.Fatalf("%v; so far %q, fed %d times", err, got, fed)
		}
		if m := string(buf[:size]); m == "WATCHDOG=1" {
			fed++
		} else {
			got = append(got, m)
		}
	}
	if want := "READY=1|STATUS=Stopping|STATUS=last"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %s", got, want)
	}
}
