package upgrade

import (
	"context"
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

// committedImage leaves nothing of updates of the binary: the slot has one of its own.
func (s State) committedImage(w World) State {
	a := s.Attempt
	s = s.committed(w.Now())
	s.Current, s.Previous, s.Base = nil, nil, ""
	s.Slot, s.SlotKubernetes = a.Image.To, a.Next.Kubernetes
	return s
}

// decideImage is one step of an image's update; the state that it returns is saved
// before the choice is followed.
func decideImage(ctx context.Context, w World, s State, log *slog.Logger) (State, Choice, error) {
	a, img, here := s.Attempt, *s.Attempt.Image, w.Slot()
	if here != img.from() && here != img.to() {
		log.Error("an update of an image was under way and no slot of it runs; it is forgotten", "version", a.Next.Name)
		return s.ended("the system that runs is in none of its slots", "", w.Now()), Choice{}, nil
	}
	old := here == img.from()
	switch {
	case s.Phase == Staged && old:
		name, err := w.Snapshot(ctx, s)
		if err != nil {
			log.Error("the data cannot be saved; the update is not tried", "version", a.Next.Name, "error", err)
			return s.ended("the data could not be saved before: "+err.Error(), "", w.Now()), Choice{}, nil
		}
		return s.begun(name), Choice{}, nil
	case s.Phase == Staged:
		return s.ended("its slot was started before its turn", "", w.Now()), Choice{}, nil
	case s.Phase == Trying && old:
		return tryImage(w, s, log)
	case s.Phase == Trying:
		return judgeImage(ctx, w, s, log)
	case s.Phase == Returning && old:
		log.Error("the update is undone, the data of before comes back", "version", a.Next.Name, "reason", a.Reason)
		if err := w.Reject(img); err != nil {
			// The device must not stay down for it: what is left of the tries is few.
			log.Error("the loader may try the other slot again", "error", err)
		}
		aside, err := w.Restore(ctx, s)
		if err != nil {
			return s, Choice{}, err // the old version must not run on the new one's data
		}
		return s.ended(a.Reason, aside, w.Now()), Choice{}, nil
	case s.Phase == Returning:
		if err := w.Reject(img); err != nil {
			// The tries that are left run out instead: nothing of this slot goes on.
			log.Error("the old slot cannot be chosen; restarting until the loader does", "error", err)
		}
		return s, Choice{Restart: true}, nil
	}
	log.Error("the state of updates is not known; the update is forgotten", "phase", s.Phase)
	return s.ended("the state of updates was not known", "", w.Now()), Choice{}, nil
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
		log.Error("the new slot cannot be chosen; the update is not tried", "error", err)
		if rerr := w.Reject(img); rerr != nil {
			log.Error("the loader may try the other slot", "error", rerr)
		}
		return s.ended("its slot could not be chosen: "+err.Error(), "", w.Now()), Choice{}, nil
	}
	log.Info("restarting to try an update", "version", a.Next.Name, "slot", img.To)
	return s.armed(w.BootID()), Choice{Restart: true}, nil
}

// judgeImage is in the slot that is tried.
func judgeImage(ctx context.Context, w World, s State, log *slog.Logger) (State, Choice, error) {
	if s = s.started(w.Now()); s.Phase != Trying {
		return s, Choice{}, nil
	}
	if err := w.Save(s); err != nil {
		return s, Choice{}, err
	}
	a := s.Attempt
	log.Info("trying an update", "version", a.Next.Name, "slot", a.Image.To, "window", a.Window, "start", a.Starts)
	switch v := w.Try(ctx, s); v.Kind {
	case Stopped:
		return s.stopped(), Choice{Exit: true, Code: v.Code}, nil
	case Crashed:
		log.Error("the version that is tried ended by itself", "version", a.Next.Name, "how", v.Reason)
		return s.crashed(v.Reason), Choice{}, nil
	case Unhealthy:
		return s.unhealthy(v.Reason), Choice{}, nil
	}
	// First the loader: should the power fail in between, it is judged once more.
	if err := w.Accept(*a.Image); err != nil {
		return s.unhealthy("it was healthy, but its slot could not be made the one that boots: " + err.Error()), Choice{}, nil
	}
	log.Info("the update is taken", "version", a.Next.Name, "slot", a.Image.To)
	return s.committedImage(w), Choice{}, nil
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
