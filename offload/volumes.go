package offload

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

	"rivulet/fabric/peer"
	"rivulet/offload/move"
	"rivulet/offload/target"
	"rivulet/offload/tenancy"
	"rivulet/offload/volume"
)

// newVolumes makes what gives claims a volume on other clusters.
func (o *Offload) newVolumes() *volume.Controller {
	begun := time.Now()
	return volume.New(volume.Config{
		Home: o.home, Cluster: o.cfg.ClusterID, Recorder: o.recorder, Log: o.cfg.Log.With("part", "volumes"),
		Peer: func(id string) string {
			if name := o.targetName(id); name != "" {
				return name
			}
			// The fabric may still be reading its records, unless it is written down.
			if time.Since(begun) < patience && !slices.Contains(o.departed(), peer.ID(id)) {
				return id
			}
			return ""
		},
	})
}

// heldTwin is the error for a twin that is not given back because data are in it.
type heldTwin struct {
	namespace, target string
	claims            []string
}

func (h *heldTwin) Error() string {
	return fmt.Sprintf("the data of claims of namespace %s are on %s: %s; move each: rivulet move volume %s/CLAIM home; or delete the claims",
		h.namespace, h.target, strings.Join(h.claims, ", "), h.namespace)
}

// holding returns a *heldTwin while there are claims in a twin: what they hold would be
// gone with it. Claims that are going are waited for, too.
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
		name := claim.Annotations[volume.HomeClaimAnnotation]
		if name == "" {
			name = claim.Name
		}
		if claim.Labels[volume.RetainedLabel] != "" {
			name += " (retained; delete " + claim.Namespace + "/" + claim.Name + " on " + t.Name() + ")"
		}
		h.claims = append(h.claims, name)
	}
	slices.Sort(h.claims)
	return h
}

// tellHeld says once, on the namespace, that its twin stays.
func (r *retirement) tellHeld(ns *corev1.Namespace, h *heldTwin) {
	if r.told[h.namespace] == h.Error() {
		return
	}
	r.told[h.namespace] = h.Error()
	r.log.Info("a twin is not given back: data are in it", "namespace", h.namespace, "claims", h.claims)
	if ns != nil {
		r.recorder.Event(ns, corev1.EventTypeWarning, "TwinHeld", h.Error())
	}
}

// Volumes are the folders of this device's volumes.
type Volumes interface {
	move.Local
	tenancy.Volumes
}

// targetName names what a target is called at home, "" if it is none.
func (o *Offload) targetName(id string) string {
	if spec, ok := o.wanted()[id]; ok {
		return spec.Name
	}
	return o.peerName(peer.ID(id))
}

// Move starts moving the data of a claim, or joins what moves them already.
func (o *Offload) Move(ctx context.Context, r move.Request) (*move.Job, error) {
	o.mu.Lock()
	m := o.mover
	o.mu.Unlock()
	if m == nil {
		return nil, errors.New("no volume can be moved yet: offloading is starting; try again in a moment")
	}
	return m.Start(ctx, r)
}

func (o *Offload) runMoves(ctx context.Context) error {
	m := move.New(move.Config{Home: o.home, Cluster: o.cfg.ClusterID, Local: o.cfg.Volumes, Place: o.volumes.Place,
		Recorder: o.recorder, Log: o.cfg.Log.With("part", "moves")})
	o.mu.Lock()
	o.mover = m
	o.mu.Unlock()
	return m.Run(ctx)
}
