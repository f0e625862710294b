package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/update"
	"rivulet/offload/policy"
)

// ErrRestart is returned by Run when the supervisor stopped in order to be started
// again: an upgrade is staged.
var ErrRestart = errors.New("appliance: to be started again")

// HoldLabel on a pod of this cluster, whatever its value, keeps an upgrade waiting
// as long as the pod is not finished.
const HoldLabel = "rivulet.dev/hold-upgrade"

// holdLook is how often the pods that hold an upgrade are looked at again.
const holdLook = 3 * time.Second

// upgrade is the supervisor's part in an upgrade: waiting for the moment.
type upgrade struct {
	mu      sync.Mutex
	restart context.CancelCauseFunc
	waiting context.CancelFunc // of the one that waits now
	heldBy  []string
}

// runRestartable is run, and tells when it ended to be started again.
func (s *System) runRestartable(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.upgrade.mu.Lock()
	s.upgrade.restart = cancel
	s.upgrade.mu.Unlock()
	if err := s.run(ctx); err != nil {
		return err
	}
	if errors.Is(context.Cause(ctx), ErrRestart) {
		return ErrRestart
	}
	return nil
}

func (s *System) upgradeRoutes(mux *http.ServeMux) {
	mux.Handle("POST /v1/upgrade", api.JSON(func(r *http.Request) (any, error) {
		var req api.UpgradeRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			return nil, err
		}
		st, err := update.Load(update.Dir(s.cfg.Dirs.State))
		if err != nil {
			return nil, err
		}
		if st.Phase != update.Staged {
			return nil, errors.New("no upgrade is staged; stage one with: rivulet upgrade FILE")
		}
		holders := s.holders(r.Context())
		if req.Now || len(holders) == 0 {
			// After the answer: the socket closes with us.
			time.AfterFunc(100*time.Millisecond, s.restartNow)
			return s.upgradeView(), nil
		}
		s.waitForHolders(holders)
		return s.upgradeView(), nil
	}))
}

func (s *System) restartNow() {
	s.upgrade.mu.Lock()
	defer s.upgrade.mu.Unlock()
	if s.upgrade.restart != nil {
		s.cfg.Log.Info("stopping for the upgrade; pods and the tunnel stay as they are")
		s.upgrade.restart(ErrRestart)
	}
}

// waitForHolders restarts once no pod holds the upgrade any more.
func (s *System) waitForHolders(holders []string) {
	ctx, cancel := context.WithCancel(context.Background())
	s.upgrade.mu.Lock()
	if s.upgrade.waiting != nil {
		s.upgrade.waiting()
	}
	s.upgrade.waiting, s.upgrade.heldBy = cancel, holders
	s.upgrade.mu.Unlock()
	go func() {
		tick := time.NewTicker(holdLook)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			st, err := update.Load(update.Dir(s.cfg.Dirs.State))
			if err != nil || st.Phase != update.Staged { // cancelled
				s.held(ctx, nil)
				return
			}
			holders := s.holders(ctx)
			s.held(ctx, holders)
			if len(holders) == 0 {
				s.restartNow()
				return
			}
		}
	}()
}

func (s *System) held(ctx context.Context, by []string) {
	s.upgrade.mu.Lock()
	defer s.upgrade.mu.Unlock()
	if ctx.Err() == nil {
		s.upgrade.heldBy = by
	}
}

// holders are the pods that hold an upgrade. Those of other clusters hold nothing
// here; if the API server does not answer, nothing does: the upgrade may be the cure.
func (s *System) holders(ctx context.Context) (names []string) {
	client := s.kube()
	if client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		LabelSelector: HoldLabel,
		FieldSelector: "status.phase!=Succeeded,status.phase!=Failed",
	})
	if err != nil {
		s.cfg.Log.Warn("nobody can be asked whether a pod holds the upgrade", "error", err)
		return nil
	}
	for _, p := range pods.Items {
		if p.Labels[policy.OriginLabel] == "" {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// upgradeView is what status shows of upgrades; it keeps their health problems too.
func (s *System) upgradeView() *api.Upgrade {
	st, err := update.Load(update.Dir(s.cfg.Dirs.State))
	s.health.Report(health.UpgradeUnreadable, err)
	if err != nil {
		return nil
	}
	s.upgrade.mu.Lock()
	held := s.upgrade.heldBy
	s.upgrade.mu.Unlock()
	if a := st.Attempt; a != nil && st.Phase == update.Staged && len(held) > 0 {
		s.health.Set(health.UpgradeWaiting, fmt.Sprintf("version %s waits for %s", a.Next.Name, strings.Join(held, ", ")),
			"it goes on when these pods have ended (label "+HoldLabel+"); rivulet upgrade --now does not wait, --cancel forgets it")
	} else {
		s.health.Clear(health.UpgradeWaiting)
	}
	if a := st.Attempt; a != nil && st.Phase == update.Trying {
		s.health.Set(health.UpgradeTrying, fmt.Sprintf("version %s is tried until %s", a.Next.Name, a.Begun.Add(a.Window).Local().Format(time.TimeOnly)),
			"nothing is to be done; rivulet upgrade --cancel goes back to "+a.From.Name)
	} else {
		s.health.Clear(health.UpgradeTrying)
	}
	if o := st.Last; o != nil && !o.OK {
		text := fmt.Sprintf("version %s was tried and given up, %s runs: %s", o.Version, o.From, o.Reason)
		if o.Aside != "" {
			text += "; what it wrote is in " + o.Aside
		}
		s.health.Set(health.UpgradeUndone, text, "see the log of that time; try another release: rivulet upgrade FILE")
	} else {
		s.health.Clear(health.UpgradeUndone)
	}
	return viewOf(st, held)
}

func viewOf(st update.State, held []string) *api.Upgrade {
	if st.Attempt == nil && st.Last == nil {
		return nil
	}
	v := &api.Upgrade{Phase: string(st.Phase)}
	if st.Last != nil {
		v.Last = st.Last
	}
	if a := st.Attempt; a != nil {
		v.To, v.From, v.HeldBy = a.Next.Name, a.From.Name, held
		if st.Phase == update.Trying {
			v.Until = a.Begun.Add(a.Window)
		}
	}
	return v
}
