package upgrade

import (
	"log/slog"

	"rivulet/image/device/layout"
)

// An update of a whole image tries the other slot of the device.
//
// 	in slot From                                 │ in slot To
// 	                                             │
// 	Staged ──data saved──▶ Trying ──armed, restart──▶ Trying ──healthy: accepted──▶ Idle (To)
// 	                          │                  │      │ unhealthy, crashed 3 times, begun 10 times
// 	                          │ the loader came  │      ▼
// 	                          ▼ back             │  Returning
// 	Idle (From) ◀─restored─ Returning ◀──rejected, restart──┘
//
// The judge in slot To is its own binary as its parent process. Failures before a judge runs (a kernel that hangs, a
// root that cannot be mounted, a binary that does not start) are handled by the loader and the initrd, which count down
// the tries.

// Image is the part of an attempt for an image.
type Image struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Armed is true once the loader was armed, in the boot with that ID.
	Armed bool   `json:"armed,omitempty"`
	Boot  string `json:"boot,omitempty"`
}

func (i Image) from() layout.Slot { return layout.Slot(i.From[0]) }
func (i Image) to() layout.Slot   { return layout.Slot(i.To[0]) }

// Slots are the machine's operations on a device with slots.
type Slots interface {
	// Slot returns the running slot; 0 is a system without slots.
	Slot() layout.Slot
	// BootID identifies this boot.
	BootID() string
	// Arm makes the loader try To; Accept and Reject make To or From the one that boots. Each may be repeated.
	Arm(Image) error
	Accept(Image) error
	Reject(Image) error
}

// image returns the tried image.
func (s State) image() *Image {
	if s.Attempt == nil || s.Phase == Idle {
		return nil
	}
	return s.Attempt.Image
}

func (s State) armed(boot string) State {
	return s.change(func(_ *State, a *Attempt) {
		i := *a.Image
		i.Armed, i.Boot = true, boot
		a.Image = &i
	})
}

// tryImage runs in the old slot: before the trial of the new one, or after it.
func tryImage(w World, s State, log *slog.Logger) (State, Choice, error) {
	a, img := s.Attempt, *s.Attempt.Image
	again := img.Armed && a.Starts == 0 && img.Boot == w.BootID() // not restarted since
	if a.Starts > 0 || img.Armed && !again {
		log.Error("the loader came back to the old slot", "version", a.Next.Name)
		return s.unhealthy("its slot did not start, or did not stay up long enough to be judged"), Choice{}, nil
	}
	if err := w.Arm(img); err != nil {
		log.Error("the new slot cannot be chosen; the update is not tried", "err", err)
		if rerr := w.Reject(img); rerr != nil {
			log.Error("the loader may try the other slot", "err", rerr)
		}
		return s.ended("its slot could not be chosen: "+err.Error(), "", w.Now()), Choice{}, nil
	}
	log.Info("restarting to try an update", "version", a.Next.Name, "slot", img.To)
	return s.armed(w.BootID()), Choice{Restart: true}, nil
}
