package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/target"
)

// newVolumes makes the controller of volumes on other clusters.
func (c *Consumer) newVolumes() *volume.Controller {
	begun := time.Now()
	return volume.New(volume.Config{
		Home: c.home, Cluster: c.cfg.ID, Recorder: c.recorder, Log: c.cfg.Log.With("part", "volumes"),
		Peer: func(id string) string {
			if spec, ok := c.wanted()[id]; ok {
				return spec.Name
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			// The caller of SetTargets may still be reading its records, unless the target has ended.
			if time.Since(begun) < target.Patience && !c.ended[id] {
				return id
			}
			return ""
		},
	})
}

// heldTwin is the error for a twin that is not released because it holds data; claims is empty if home knows none of
// them.
type heldTwin struct {
	namespace, target string
	claims            []string
}

func (h *heldTwin) Error() string {
	if len(h.claims) == 0 {
		return fmt.Sprintf("on %s there are data of namespace %s for which home has no volume; see: rivulet volumes", h.target, h.namespace)
	}
	return fmt.Sprintf("the data of claims of namespace %s are on %s: %s; move each: rivulet move volume %s/CLAIM home; or delete the claims",
		h.namespace, h.target, strings.Join(h.claims, ", "), h.namespace)
}

// holding returns a *heldTwin while there are claims in a twin, including those being deleted: their data would be
// deleted with it.
func holding(ctx context.Context, t target.Target, home, twin string) error {
	list, err := t.Client().CoreV1().PersistentVolumeClaims(twin).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil // an older provider lends no volumes, so there are none
	case err != nil:
		return err
	case len(list.Items) == 0:
		return nil
	}
	h := &heldTwin{namespace: home, target: t.Name()}
	for i := range list.Items {
		claim := &list.Items[i]
		if !volume.Checked(claim) {
			h.claims = append(h.claims, "one without a proper name")
			continue
		}
		name := claim.Annotations[volume.HomeClaimAnnotation]
		if name == "" {
			name = claim.Name
		}
		if claim.Labels[volume.RetainedLabel] != "" {
			at := t.Name() + "/" + home + "/" + claim.Name
			name += " (kept; rivulet volumes adopt " + at + ", or rivulet volumes delete " + at + ")"
		}
		h.claims = append(h.claims, name)
	}
	slices.Sort(h.claims)
	return h
}

// reportHeld reports once, on the namespace, that its twin stays.
func (r *collector) reportHeld(ns *corev1.Namespace, h *heldTwin) {
	r.mu.Lock()
	was := r.reported[h.namespace]
	r.reported[h.namespace] = h.Error()
	r.mu.Unlock()
	if was == h.Error() {
		return
	}
	r.log.Info("a twin is not given back: data are in it", "namespace", h.namespace, "claims", h.claims)
	if ns != nil {
		r.recorder.Event(ns, corev1.EventTypeWarning, "TwinHeld", h.Error())
	}
}

// ErrStarting is returned while offloading starts.
var ErrStarting = errors.New("offloading is starting; try again in a moment, see: rivulet status")

// Volumes is the controller of volumes on other clusters. Its View, Adopt and Discard may be called.
func (c *Consumer) Volumes() (*volume.Controller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.volumes == nil || !c.volumes.Running() {
		return nil, ErrStarting
	}
	return c.volumes, nil
}

// UnknownVolumes are the data on targets that home's datastore does not know; see volume.Controller.Unknown.
func (c *Consumer) UnknownVolumes() map[string][]string {
	c.mu.Lock()
	volumes := c.volumes
	c.mu.Unlock()
	if volumes == nil {
		return nil
	}
	return volumes.Unknown()
}

// Move starts moving the data of a claim, or joins the move that is under way.
func (c *Consumer) Move(ctx context.Context, r move.Request) (*move.Job, error) {
	c.mu.Lock()
	m := c.mover
	c.mu.Unlock()
	if m == nil {
		return nil, ErrStarting
	}
	return m.Start(ctx, r)
}

func (c *Consumer) runMoves(ctx context.Context) error {
	m := move.New(move.Config{Home: c.home, Cluster: c.cfg.ID, Local: c.cfg.Volumes, Place: c.volumes.Place,
		Recorder: c.recorder, Log: c.cfg.Log.With("part", "moves")})
	c.mu.Lock()
	c.mover = m
	c.mu.Unlock()
	return m.Run(ctx)
}
