package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/image/device/layout"
)

// An update of a whole image, from a stick and without a network, on one disk from
// beginning to end: power cuts and bad updates first, a good one after them. Each
// part begins with a machine that is switched on, and ends with one that is not.
//
// What a machine counts by is its firmware, and so the bad updates differ: on UEFI
// systemd-boot counts; on BIOS the slot's own initrd does, or where its kernel does not
// come so far, that of the other one.
func TestUpdate(t *testing.T) {
	packed, bundle := image(t, "RIVULET_UPDATE_FROM"), image(t, "RIVULET_UPDATE_TO")
	usb := stick(t, bundle)
	all := firmware(t)
	for _, kind := range []struct {
		firmware string
		dark     map[string]string // what the machine says of it
		why      string
	}{
		{"bios", map[string]string{"hollow": "slot b did not prove itself: slot a comes back", "panic": "slot b did not come up; it is to start once more"},
			"it ended by itself 3 times, the last time with exit code 7"},
		{"uefi", map[string]string{"panic": ""}, "it gives no status"},
	} {
		more, has := all[kind.firmware]
		if !has {
			continue
		}
		t.Run(kind.firmware, func(t *testing.T) {
			s := &story{t: t, disk: keptDisk(t, packed, kind.firmware), more: append([]string{"-drive", "file=" + usb + ",format=raw,if=virtio,readonly=on"}, more...)}
			s.part("PowerCutWhileItIsWritten", s.cutWhileWritten)
			for _, file := range slices.Sorted(maps.Keys(kind.dark)) {
				s.part("ASlotThatDoesNotStart/"+file, func() { s.dark(file, kind.dark[file]) })
			}
			s.part("ARivuletThatIsNotUpToIt", func() { s.stuck(kind.why) })
			s.part("AGoodOneAfterAllThese", s.good)
		})
	}
}

// window is enough for an emulated machine to have its cluster ready: it took four
// minutes on a busy one.
const window = "10m"

// story is what happens to one disk.
type story struct {
	t    *testing.T
	disk string
	more []string
	m    *machine
}

// part runs a part of the story, unless an earlier one has failed.
func (s *story) part(name string, f func()) {
	if s.t.Failed() {
		return
	}
	whole := s.t
	whole.Run(name, func(t *testing.T) {
		s.t = t
		defer func() { s.t = whole }()
		begin := time.Now()
		s.m = on(t, s.disk, s.more...)
		f()
		s.m.cut()
		t.Logf("%s took %s", name, time.Since(begin).Round(time.Second))
	})
}

// begun waits for a shell in a slot, and has the stick in its place.
func (s *story) begun(slot layout.Slot) {
	s.t.Helper()
	s.m.says(`rivulet-initrd: slot ` + slot.String() + ` of`)
	s.m.forget() // the prompt of before
	s.m.says(`root@\S+#`)
	s.m.ask("dmesg -n 1")
	s.m.ask("stty cols 500; mkdir -p /run/stick; mount -o ro /dev/vdb /run/stick")
	if got := s.m.ask("cat /run/rivulet-image/slot"); got != slot.String() {
		s.t.Fatalf("slot %q runs, not %s", got, slot)
	}
}

// serves waits until rivulet answers.
func (s *story) serves() {
	s.t.Helper()
	s.m.until("rivulet status -o json | tr -d '\\n '", `"version":"v`)
}

// upgrade begins one; the machine restarts by itself, and what it says is new then.
func (s *story) upgrade(file, window string) {
	s.t.Helper()
	s.m.forget()
	s.m.run("rivulet upgrade --window " + window + " --every 5s /run/stick/" + file)
	s.m.says(`is staged and begins now`)
	s.m.forget()
	s.m.says(`rivulet-initrd: slot b of|Kernel panic`)
}

// shown is what `rivulet upgrade` says when it is over.
func (s *story) shown(want string) {
	s.t.Helper()
	s.m.until("rivulet upgrade", want)
}

// chosen checks what the loader has: a slot, and nothing that is to be tried.
func (s *story) chosen(good layout.Slot, entries string) {
	s.t.Helper()
	s.m.until("cat /boot/firmware/slot.cfg", fmt.Sprintf(`^# rivulet good=%s try=- tries=0`, good))
	s.m.until("cat /boot/firmware/slot.cfg", "^DEFAULT "+good.String())
	if got := strings.Join(strings.Fields(s.m.ask("ls /boot/firmware/loader/entries")), " "); got != entries {
		s.t.Errorf("entries of the loader: %s, want %s", got, entries)
	}
}

// The power fails while the other slot is written: nothing has happened.
func (s *story) cutWhileWritten() {
	s.begun(layout.A)
	s.m.until("rivulet kubectl create configmap before 2>&1", "created|already exists")
	s.m.until("sync; echo done", "done")
	s.m.run("rivulet upgrade /run/stick/good")
	s.m.says(`checking the image: 100 %, \d+ MB of \d+ MB`)
	s.m.says(`writing: [3-8]\d %, \d+ MB of \d+ MB`)
	s.m.cut()
	s.m = on(s.t, s.disk, s.more...)
	s.begun(layout.A)
	s.shown("never upgraded")
	s.chosen(layout.A, "rivulet-a.conf")
}

// A slot that does not come to its rivulet is started three times; then the old one
// comes back by itself, and says so.
func (s *story) dark(file, says string) {
	s.begun(layout.A)
	s.serves()
	s.upgrade(file, window)
	if says != "" {
		s.m.says(says)
	}
	s.begun(layout.A)
	s.shown("v3.0.0-dark was tried and given up .*its slot did not start")
	s.serves()
	s.m.until("rivulet status", "v3.0.0-dark")
	s.chosen(layout.A, "rivulet-a.conf")
}

// A slot whose rivulet is not up to it is given up by its judge. One that hangs does
// so for longer than systemd gives a start.
func (s *story) stuck(why string) {
	s.begun(layout.A)
	s.serves()
	s.upgrade("stuck", "4m")
	s.m.forget()
	s.begun(layout.A)
	s.shown("v3.0.0-stuck was tried and given up .*" + why)
	s.chosen(layout.A, "rivulet-a.conf")
}

// A good one waits for a pod that holds it, and is taken though the power fails twice: when
// its slot starts for the first time, and in the middle of its window.
func (s *story) good() {
	s.begun(layout.A)
	s.serves()
	// It runs nowhere, and is not finished: that holds.
	s.m.until(`rivulet kubectl run hold --image=none --labels=rivulet.dev/hold-upgrade=test --overrides='{"spec":{"nodeSelector":{"no":"such"}}}' 2>&1`, "created|already exists")
	s.m.until("rivulet upgrade --window "+window+" --every 5s /run/stick/good | tail -n 1", `is staged and waits for \[default/hold\] to end`)
	s.m.until("rivulet status", "default/hold")
	s.chosen(layout.A, "rivulet-a.conf")
	s.m.forget()
	s.m.run("rivulet kubectl delete pod hold --now")
	s.m.says(`rivulet-initrd: slot b of`)
	s.m.cut()
	s.m = on(s.t, s.disk, s.more...)
	s.begun(layout.B)
	s.shown("trying")
	s.serves()
	s.m.cut()
	s.m = on(s.t, s.disk, s.more...)
	s.begun(layout.B)
	s.shown("→ v2.0.0 at")
	s.m.until("rivulet status -o json | tr -d '\\n '", `"version":"v2.0.0"`)
	s.m.until("rivulet kubectl get configmap before -o name", "configmap/before")
	s.chosen(layout.B, "rivulet-a.conf rivulet-b.conf")
	if got := s.m.ask("ls /run/rivulet-image/trying 2>&1"); !strings.Contains(got, "No such file") {
		s.t.Errorf("the deadline of a slot that nobody judges goes on: %s", got)
	}
}

// forget has the machine begin to be listened to anew.
func (m *machine) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said = nil
}

// run types a command and does not wait for its end.
func (m *machine) run(command string) { fmt.Fprintf(m.line, "\n%s\n", command) }
