package upgrade

import (
	"fmt"
	"log/slog"

	"rivulet/appliance/version"
	"rivulet/image/device/layout"
)

// An update of a whole image: what is tried is the other slot of the device.
//
//	in slot From                                 │ in slot To
//	                                             │
//	Staged ──data saved──▶ Trying ──armed, restart──▶ Trying ──healthy: accepted──▶ Idle (To)
//	                          │                  │      │ unhealthy, crashed 3 times, begun 10 times
//	                          │ the loader came  │      ▼
//	                          ▼ back             │  Returning
//	Idle (From) ◀─restored─ Returning ◀──rejected, restart──┘
//
// The judge in slot To is its own binary as the parent of itself. What is no judge
// any more (a kernel that hangs, a root that cannot be mounted, a binary that does not
// start) is found by the loader and the initrd, which count tries down.

// Image is the part of an attempt that an image has.
type Image struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Armed is true once the loader was told, in the boot of that ID.
	Armed bool   `json:"armed,omitempty"`
	Boot  string `json:"boot,omitempty"`
}

func (i Image) from() layout.Slot { return layout.Slot(i.From[0]) }
func (i Image) to() layout.Slot   { return layout.Slot(i.To[0]) }

// Slots is what the machine needs of a device with slots.
type Slots interface {
	// Slot that runs; 0 is a system without slots.
	Slot() layout.Slot
	// BootID is of this run of the kernel.
	BootID() string
	// Arm has the loader try To; Accept and Reject make To or From the one that boots.
	// Each may be done again.
	Arm(Image) error
	Accept(Image) error
	Reject(Image) error
}

// image is the one that is tried.
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

// tryImage is in the old slot: the new one is about to be tried, or was.
func tryImage(w World, s State, log *slog.Logger) (State, Choice, error) {
	a, img := s.Attempt, *s.Attempt.Image
	again := img.Armed && a.Starts == 0 && img.Boot == w.BootID() // we have not restarted since
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

// ofThisSlot sees that no older version runs on the data of a newer one, when somebody
// chose the other slot in the loader's menu, or the loader had to.
func (s State) ofThisSlot(w World, log *slog.Logger) error {
	here := w.Slot()
	if s.Slot == "" || !here.Valid() || here.String() == s.Slot {
		return nil
	}
	log.Warn("slot "+here.String()+" runs and not the one that was taken last", "taken", s.Slot)
	was, err := version.Minor(s.SlotKubernetes)
	if err != nil {
		return nil //nolint:nilerr // nothing to compare with
	}
	if ours, err := version.Minor(version.Kubernetes()); err == nil && ours < was {
		return fmt.Errorf("update: slot %s has Kubernetes %s, and the data is of %s; start slot %s again, or restore a backup here",
			here, version.Kubernetes(), s.SlotKubernetes, s.Slot)
	}
	return nil
}
