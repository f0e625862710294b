package upgrade

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// While an update is judged the service manager is asked for time, and not after.
func TestTheServiceManagerIsAskedForTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "systemd.sock")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	enough := patient(time.Millisecond, discard)
	buf := make([]byte, 1000)
	for range 2 {
		systemd.SetReadDeadline(time.Now().Add(30 * time.Second))
		size, err := systemd.Read(buf)
		if got := string(buf[:size]); err != nil || got != "EXTEND_TIMEOUT_USEC=180000000" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	enough()
	t.Setenv("NOTIFY_SOCKET", "")
	patient(time.Millisecond, discard)() // without a service manager there is nobody to ask
}

// What systemd allows is less than it is asked for, and it is asked in time.
func TestPatienceFitsTheUnit(t *testing.T) {
	if moreTime < 3*time.Minute || 3*extendEvery > moreTime {
		t.Errorf("asked every %s for %s, the unit allows three minutes", extendEvery, moreTime)
	}
}
