package upgrade

import (
	"context"
	"log/slog"
	"time"
)

// World is what the machine acts on: the device, or a test's model of one. Each
// method may have been cut short by a power cut before, and be called again.
type World interface {
	Load() (State, error)
	Save(State) error // durable when it returns
	// Snapshot saves the data as it is before the new version touches it.
	Snapshot(context.Context, State) (name string, err error)
	// Restore brings the data of the snapshot back and returns where the other is.
	Restore(context.Context, State) (aside string, err error)
	// Try runs the new version until there is a verdict.
	Try(context.Context, State) Verdict
	// Point puts what the state says at the installed place, and removes what no
	// version of it needs. It reports whether the installed place has it.
	Point(State) (linked bool)
	Now() time.Time
	Slots
}

// Kind says how a trial ended.
type Kind int

// The ways a trial ends.
const (
	Healthy   Kind = iota // through the whole window
	Unhealthy             // at its end, or cancelled
	Crashed               // it ended by itself
	Stopped               // we were told to stop
)

// Verdict is the end of a trial.
type Verdict struct {
	Kind   Kind
	Reason string
	Code   int // of exit, when stopped
}

// Choice is what `rivulet run` has to do.
type Choice struct {
	// Run is the version to become; nil is this binary.
	Run *Version
	// Exit ends the process instead, with Code.
	Exit bool
	Code int
	// Restart the device: the boot loader starts another slot.
	Restart bool
}

// decide carries the machine on until it is idle, or told to stop. self is the
// build of this binary.
func decide(ctx context.Context, w World, self string, log *slog.Logger) (Choice, error) {
	s, err := w.Load()
	if err != nil {
		// A device must not stay down for the sake of an update that is over.
		log.Error("the state of updates cannot be read; going on with this binary", "error", err)
		return Choice{}, nil
	}
	if s.replaced(self) {
		log.Warn("another binary was put in place by hand; updates begin anew from it")
		s = s.reset()
		if err := w.Save(s); err != nil {
			return Choice{}, err
		}
	}
	for s.Phase != Idle {
		if s.image() != nil {
			next, choice, err := decideImage(ctx, w, s, log)
			if err != nil {
				return Choice{}, err
			}
			s = next
			if err := w.Save(s); err != nil || choice.Exit || choice.Restart {
				return choice, err
			}
			continue
		}
		switch s.Phase {
		case Staged:
			name, err := w.Snapshot(ctx, s)
			if err != nil {
				log.Error("the data cannot be saved; the update is not tried", "version", s.Attempt.Next.Name, "error", err)
				s = s.ended("the data could not be saved before: "+err.Error(), "", w.Now())
				break
			}
			s = s.begun(name)
		case Trying:
			if s = s.started(w.Now()); s.Phase != Trying {
				break
			}
			if err := w.Save(s); err != nil {
				return Choice{}, err
			}
			log.Info("trying an update", "version", s.Attempt.Next.Name, "from", s.Attempt.From.Name, "window", s.Attempt.Window, "start", s.Attempt.Starts)
			switch v := w.Try(ctx, s); v.Kind {
			case Stopped:
				return Choice{Exit: true, Code: v.Code}, w.Save(s.stopped())
			case Healthy:
				s = s.committed(w.Now())
				log.Info("the update is taken", "version", s.Current.Name)
			case Crashed:
				log.Error("the version that is tried ended by itself", "version", s.Attempt.Next.Name, "how", v.Reason)
				s = s.crashed(v.Reason)
			case Unhealthy:
				s = s.unhealthy(v.Reason)
			}
		case Returning:
			log.Error("the update is undone, the data of before comes back", "version", s.Attempt.Next.Name, "reason", s.Attempt.Reason)
			aside, err := w.Restore(ctx, s)
			if err != nil {
				return Choice{}, err // the old version must not run on the new one's data
			}
			s = s.ended(s.Attempt.Reason, aside, w.Now())
		default:
			log.Error("the state of updates is not known; going on with this binary", "phase", s.Phase)
			return Choice{}, nil
		}
		if err := w.Save(s); err != nil {
			return Choice{}, err
		}
	}
	if err := s.ofThisSlot(w, log); err != nil {
		return Choice{}, err
	}
	if linked := w.Point(s); linked != s.Linked {
		s.Linked = linked
		if err := w.Save(s); err != nil {
			return Choice{}, err
		}
	}
	if s.Current == nil || s.Current.BuildID == self {
		return Choice{}, nil
	}
	return Choice{Run: s.Current}, nil
}
