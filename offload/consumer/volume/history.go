package volume

import (
	"context"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

const (
	// HistoryName is the ConfigMap in namespace kube-system whose UID names the history of home's API. Whoever puts back
	// an older datastore (a restore, an undone upgrade, a recovery) removes it, and it is made again.
	HistoryName = "rivulet-history"
	// HistoryAnnotation on a claim in a twin is the Moment of home's API at which the claim was made.
	HistoryAnnotation = "rivulet.dev/home-history"
)

// Moment is a point in the history of home's API. What home's API does not know proves nothing about an object of another
// history, or of a later moment than now: home's API may be older than it.
type Moment struct {
	history  string
	revision uint64
	// since is the first revision that the datastore has surely given itself after the last leap, or later.
	since uint64
}

// Leap is what a datastore that may have gone back adds to its revision (appliance/engine/datastore).
const Leap = 1_000_000_000

// Now reads the present moment from home's API server, and begins a history if there is none.
func Now(ctx context.Context, home kubernetes.Interface) (Moment, error) {
	for {
		now, err := read(ctx, home)
		// Somebody else has written it meanwhile.
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
			return now, err
		}
		if !changes.Wait(ctx, 100*time.Millisecond) {
			return Moment{}, ctx.Err()
		}
	}
}

func read(ctx context.Context, home kubernetes.Interface) (Moment, error) {
	api := home.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	list, err := api.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + HistoryName})
	if err != nil {
		return Moment{}, err
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.Name == HistoryName {
			now := moment(m, list.ResourceVersion)
			if now.revision < now.since+Leap {
				return now, nil
			}
			// The datastore has leapt since this was written. It is written again, so that its revision is behind the leap.
			m.Data = map[string]string{"written": list.ResourceVersion}
			if m, err = api.Update(ctx, m, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
				return Moment{}, err
			}
			return moment(m, m.ResourceVersion), nil
		}
	}
	m, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: HistoryName}}, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if err != nil {
		return Moment{}, err
	}
	return moment(m, m.ResourceVersion), nil
}

// moment is that of a history at a revision; an unreadable revision is the first.
func moment(m *corev1.ConfigMap, revision string) Moment {
	at, _ := strconv.ParseUint(revision, 10, 64)
	since, _ := strconv.ParseUint(m.ResourceVersion, 10, 64)
	return Moment{string(m.UID), at, since}
}

func (m Moment) String() string { return m.history + "." + strconv.FormatUint(m.revision, 10) }

// Follows reports whether the moment is not before the other one, which is a Moment's text, in the same history.
func (m Moment) Follows(other string) bool { return m.follows(other, 0) }

// Continues reports whether the moment follows the other one, and the datastore has surely not gone back between them: its
// file is closed in order, or the kernel still runs. After a power cut the file may be that of an older image of the card.
func (m Moment) Continues(other string) bool { return m.follows(other, m.since) }

func (m Moment) follows(other string, since uint64) bool {
	history, revision, _ := strings.Cut(other, ".")
	at, err := strconv.ParseUint(revision, 10, 64)
	return err == nil && history != "" && history == m.history && since <= at && at <= m.revision
}

// Stamp writes the present moment on a claim that is about to be made in a twin.
func Stamp(ctx context.Context, home kubernetes.Interface, claim *corev1.PersistentVolumeClaim) error {
	now, err := Now(ctx, home)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, HistoryAnnotation, now.String())
	return nil
}
