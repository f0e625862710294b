package external

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/offer"
)

const (
	// checkEvery is the interval of checks of the campus, in addition to its watch; checkTimeout bounds one that also reads
	// what rarely changes.
	checkEvery, checkTimeout = 5 * time.Second, 10 * time.Second
	// silence is how long the campus may give no good answer before the node is NotReady. After a failure a check follows in
	// retry.
	silence, retry = 11 * time.Second, time.Second
	// trust is how many have to succeed after that.
	trust = 2
	// rereadEvery is the interval in which rarely changing state is read: nodes, Pod Security, and the usage of home's
	// pods.
	rereadEvery = time.Minute
	// wayEvery is the interval of checks of the gateway until it is ready for the first time.
	wayEvery = 2 * time.Second
	// rewatch is the pause before another attempt to watch quotas.
	rewatch = 30 * time.Second
)

// Health is the state of the target.
type Health struct {
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"` // of the campus's last answer
	// RTT is the duration of the last check.
	RTT time.Duration `json:"rtt"`
	// Security is the Pod Security level, Arch the offered architecture.
	Security string              `json:"podSecurity,omitempty"`
	Arch     string              `json:"arch,omitempty"`
	Version  string              `json:"version,omitempty"`
	Room     corev1.ResourceList `json:"room,omitempty"`
	// Identity is that of the namespace.
	Identity Identity `json:"identity,omitzero"`
	// Refused: the credential is refused.
	Refused bool `json:"refused,omitempty"`
	// Notes are information, not obstacles.
	Notes []string `json:"notes,omitempty"`
}

// follow checks the campus until ctx ends, and sends its offers. A change of the quota is detected at once if it may be
// watched. end ends ctx.
func (t *Target) follow(ctx context.Context, end context.CancelCauseFunc, out chan offer.Offer) {
	changed := make(chan struct{}, 1)
	go func() {
		defer panics.To(end)
		t.watchQuotas(ctx, changed)
	}()
	var health Health
	var reread time.Time
	good, lost := 0, true  // no answer yet
	answered := time.Now() // well
	for {
		begun := time.Now()
		now, running, err := t.check(ctx, begun.Sub(reread) >= rereadEvery, limitOf(answered, lost))
		if unwelcome(err) && ctx.Err() == nil && t.cfg.Credential.Renewed() != "" {
			// After a refusal files are read and commands run again. A certificate belongs to its connection, so the
			// connections are closed as well.
			t.conns.CloseAll()
			t.streams.CloseAll()
			now, running, err = t.check(ctx, begun.Sub(reread) >= rereadEvery, checkTimeout)
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil && begun.Sub(reread) >= rereadEvery {
			reread = begun
			go func() {
				defer panics.To(end)
				t.nudge(ctx)
			}()
		}
		if err == nil && !t.reaches() {
			err = errNoWay
		}
		last := offer.Offer{}
		if err == nil {
			last = t.offer(now, running)
			err = last.Check()
		}
		switch {
		case err == nil:
			good++
			answered = time.Now()
			health.Since, health.RTT = answered, answered.Sub(begun)
			if lost && health.Version != "" && good < trust {
				break // it was lost, and trust is not reached yet
			}
			if lost && health.Version != "" {
				t.conns.CloseAll() // after a long cut they may be dead
				t.streams.CloseAll()
			}
			lost = false
			health.Ready, health.Refused, health.Reason, health.Version, health.Arch = true, false, "", running, last.Architecture
			health.Identity, health.Security, health.Room, health.Notes = now.identity, now.security, last.Allocatable, nil
			if now.unmeasured != "" {
				health.Notes = []string{noTop + now.unmeasured}
			}
			offer.Replace(out, last)
		case time.Since(answered) >= silence, final(err):
			good, lost = 0, true
			health.Ready, health.Refused, health.Reason = false, unwelcome(err), fmt.Sprintf("%s: %v", t.cfg.Settings.Name, explain(err, t.cfg.Settings.Namespace))
			offer.Replace(out, offer.Offer{Reason: health.Reason}) // the nodes keep the rest of the last offer
		default:
			good = 0
		}
		if t.cfg.Received != nil {
			t.cfg.Received(health)
		}
		pause := t.cfg.CheckEvery
		if err != nil && !lost {
			pause = min(pause, retry)
		}
		if errors.Is(err, errNoWay) {
			pause = wayEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			reread = time.Time{}                 // the usage of home's pods is part of it
			if !changes.Wait(ctx, time.Second) { // one starting pod changes a quota several times
				return
			}
		case <-time.After(pause):
		}
	}
}

// errNoWay is reported until the gateway is ready for the first time: before that home does not have the addresses of
// pods there.
var errNoWay = errors.New("the gateway there is not ready yet; see rivulet burst status")

// reaches reports whether the way to home was ready once, if there is to be one.
func (t *Target) reaches() bool {
	if t.cfg.Network == nil || t.reached {
		return true
	}
	_, t.reached = t.cfg.Network.DNS(metav1.NamespaceDefault)
	return t.reached
}

// final reports whether a repetition would get the same answer.
func final(err error) bool {
	return errors.Is(err, errNoWay) || unwelcome(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// limitOf is how long a check may wait for its first answer: so that a silent campus is lost after silence.
func limitOf(answered time.Time, lost bool) time.Duration {
	if lost {
		return checkTimeout
	}
	return max(silence-time.Since(answered), retry)
}

// check reads the campus's state; with all, also what rarely changes. first bounds the first request, and all of them if all is false.
func (t *Target) check(ctx context.Context, all bool, first time.Duration) (state, string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	soon, cancelSoon := context.WithTimeout(ctx, first)
	defer cancelSoon()
	running, err := serverVersion(soon, t.campus)
	if err != nil {
		return state{}, "", err
	}
	if !all {
		// The cheapest request that shows that the credential is still valid.
		_, err := t.campus.CoreV1().Pods(t.cfg.Settings.Namespace).List(soon, metav1.ListOptions{Limit: 1, FieldSelector: "metadata.name=rivulet"})
		return t.rules.get(), running, err
	}
	now, err := read(ctx, t.campus, t.raw, t.cfg.Settings, t.cfg.Cluster)
	if err != nil {
		return state{}, "", err
	}
	t.rules.set(now)
	return now, running, nil
}

// serverVersion is the API server's; unlike discovery's it ends with ctx.
func serverVersion(ctx context.Context, client kubernetes.Interface) (string, error) {
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(raw, &v); err != nil || v.GitVersion == "" {
		return "", fmt.Errorf("what answers there is no Kubernetes API server; correct the server's address in the kubeconfig")
	}
	return v.GitVersion, nil
}

func (t *Target) offer(now state, version string) offer.Offer {
	o := offer.Offer{Ready: true, OS: "linux", Architecture: t.cfg.Settings.Arch, KubeVersion: version,
		Allocatable: now.room(t.cfg.Settings.Limits), Labels: map[string]string{}}
	if len(now.arches) > 0 {
		o.Architecture = now.arches[0]
	}
	maps.Copy(o.Labels, now.labels)
	maps.Copy(o.Labels, t.cfg.Settings.Labels)
	for _, arch := range now.arches[:min(len(now.arches), offer.MaxPlatforms)] {
		o.Platforms = append(o.Platforms, offer.PlatformOffer{Platform: offer.Platform{OS: o.OS, Architecture: arch}, Ready: true,
			Allocatable: now.roomOf(arch, t.cfg.Settings.Limits), KubeVersion: o.KubeVersion, Labels: o.Labels})
	}
	if len(o.Platforms) > 0 {
		o.Allocatable = o.Platforms[0].Allocatable
	}
	return o
}

// watchQuotas reports each change of a quota. Without the right to watch, the regular checks have to suffice.
func (t *Target) watchQuotas(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		w, err := t.campus.CoreV1().ResourceQuotas(t.cfg.Settings.Namespace).Watch(ctx, metav1.ListOptions{})
		if err == nil {
			for range w.ResultChan() {
				changes.Poke(changed)
			}
			w.Stop()
		}
		changes.Wait(ctx, rewatch)
	}
}
