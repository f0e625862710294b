package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

// HoldLabel on a pod of this cluster, with any value, delays an upgrade until the pod is finished.
const HoldLabel = "rivulet.dev/hold-upgrade"

// holdLook is the interval of checks of the pods that hold an upgrade.
const holdLook = 3 * time.Second

// holdersTimeout limits the request for the pods that hold an upgrade.
const holdersTimeout = 2 * time.Second

// Handover is the running supervisor's part of a staged upgrade: it waits until no pod holds it, and ends the
// supervisor for a restart. Its fields are set before use; its methods may be called at any time.
type Handover struct {
	State  string                      // the state folder
	Client func() kubernetes.Interface // nil before the API server answered
	// Restart ends the supervisor; it does not wait.
	Restart func()
	Health  *health.Tracker
	Log     *slog.Logger

	begun atomic.Bool

	mu      sync.Mutex
	waiting context.CancelFunc // cancels the present wait
	heldBy  []string
}

// Routes registers the last step of `rivulet upgrade`.
func (h *Handover) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/upgrade", api.JSON(func(r *http.Request) (any, error) {
		var req api.UpgradeRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			return nil, err
		}
		return h.Begin(r.Context(), req.Now)
	}))
}

// Begin restarts into the staged version, when no pod holds it or now.
func (h *Handover) Begin(ctx context.Context, now bool) (*api.Upgrade, error) {
	st, err := Load(paths.Versions(h.State))
	if err != nil {
		return nil, err
	}
	if st.Phase != Staged {
		return nil, errors.New("no upgrade is staged; stage one with: rivulet upgrade FILE")
	}
	holders := h.holders(ctx)
	if now || len(holders) == 0 {
		// After the answer, because the socket closes with the supervisor.
		time.AfterFunc(100*time.Millisecond, h.restart)
		return h.View(), nil
	}
	h.waitForHolders(holders)
	return h.View(), nil
}

// Begun reports whether the supervisor ends for a staged upgrade.
func (h *Handover) Begun() bool { return h.begun.Load() }

func (h *Handover) restart() {
	h.begun.Store(true)
	h.Log.Info("stopping for the upgrade; pods and the tunnel stay as they are")
	h.Restart()
}

// waitForHolders restarts once no pod holds the upgrade.
func (h *Handover) waitForHolders(holders []string) {
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	if h.waiting != nil {
		h.waiting()
	}
	h.waiting, h.heldBy = cancel, holders
	h.mu.Unlock()
	go func() {
		for changes.Wait(ctx, holdLook) {
			st, err := Load(paths.Versions(h.State))
			if err != nil || st.Phase != Staged { // cancelled
				h.held(ctx, nil)
				return
			}
			holders := h.holders(ctx)
			h.held(ctx, holders)
			if len(holders) == 0 {
				h.restart()
				return
			}
		}
	}()
}

func (h *Handover) held(ctx context.Context, by []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		h.heldBy = by
	}
}

// holders returns the pods that hold an upgrade. Tenants cannot hold it. Without an answer of the API server nothing
// does: the upgrade may be the cure.
func (h *Handover) holders(ctx context.Context) (names []string) {
	client := h.Client()
	if client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdersTimeout)
	defer cancel()
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		LabelSelector: HoldLabel,
		FieldSelector: "status.phase!=Succeeded,status.phase!=Failed",
	})
	if err != nil {
		h.Log.Warn("nobody can be asked whether a pod holds the upgrade", "err", err)
		return nil
	}
	for _, p := range pods.Items {
		if p.Labels[policy.OriginLabel] == "" {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// View is the part of status about upgrades, nil without one; it also updates their health problems.
func (h *Handover) View() *api.Upgrade {
	st, err := Load(paths.Versions(h.State))
	h.Health.Report(health.UpgradeUnreadable, err)
	if err != nil {
		return nil
	}
	h.mu.Lock()
	held := h.heldBy
	h.mu.Unlock()
	a, o := Attempt{}, Outcome{OK: true}
	if st.Attempt != nil {
		a = *st.Attempt
	}
	if st.Last != nil {
		o = *st.Last
	}
	h.Health.SetIf(st.Phase == Staged && len(held) > 0, health.UpgradeWaiting, fmt.Sprintf("version %s waits for %s", a.Next.Name, strings.Join(held, ", ")),
		"it goes on when these pods have ended (label "+HoldLabel+"); do not wait: rivulet upgrade --now; forget it: rivulet upgrade --cancel")
	h.Health.SetIf(st.Phase == Trying, health.UpgradeTrying, fmt.Sprintf("version %s is tried until %s", a.Next.Name, a.Begun.Add(a.Window).Local().Format(time.TimeOnly)),
		"nothing is to be done; back to "+a.From.Name+": rivulet upgrade --cancel")
	text := fmt.Sprintf("version %s was tried and given up, %s runs: %s", o.Version, o.From, o.Reason)
	if o.Aside != "" {
		text += "; what it wrote is in " + o.Aside
	}
	h.Health.SetIf(!o.OK, health.UpgradeUndone, text, "see the log of that time; try another release: rivulet upgrade FILE")
	return viewOf(st, held)
}

func viewOf(st State, held []string) *api.Upgrade {
	if st.Attempt == nil && st.Last == nil {
		return nil
	}
	v := &api.Upgrade{Phase: string(st.Phase)}
	if st.Last != nil {
		v.Last = st.Last
	}
	if a := st.Attempt; a != nil {
		v.To, v.From, v.HeldBy = a.Next.Name, a.From.Name, held
		if st.Phase == Trying {
			v.Until = a.Begun.Add(a.Window)
		}
	}
	return v
}
