// Package fit remembers which images do not run on which architectures, and which owners (ReplicaSets and the like)
// have pods that a target refuses. The API server then keeps such pods off these nodes. It alone writes ConfigMap
// rivulet-images in kube-system, the parameter of admission policy rivulet-images. Entries end after Life, since a tag
// may be pushed again. Restart: the ConfigMap is the memory. Failure: a pod is placed where its image does not run, and
// is evicted there.
package fit

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

const (
	// Name and Namespace are those of the ConfigMap.
	Name, Namespace = "rivulet-images", metav1.NamespaceSystem
	// Life is how long an entry is valid.
	Life = time.Hour
	// most bounds the entries; the oldest are dropped first.
	most = 200
	// maxKey is the longest key of a ConfigMap.
	maxKey = 253
	// sinceAnnotation on the ConfigMap has the time of each entry, as JSON by key.
	sinceAnnotation = "rivulet.dev/learnt"
)

// Memory are the entries. Its methods may be called concurrently.
type Memory struct {
	client kubernetes.Interface
	log    *slog.Logger
}

// New makes a Memory; Run removes its old entries.
func New(client kubernetes.Interface, log *slog.Logger) *Memory { return &Memory{client, log} }

// Key is the image's key in the ConfigMap, the same as in the admission policy. Keys of different images differ.
func Key(image string) string {
	for _, r := range [][2]string{{"_", "_u"}, {"/", "_s"}, {":", "_c"}, {"@", "_a"}} {
		image = strings.ReplaceAll(image, r[0], r[1])
	}
	return image
}

// Learn adds that the image has nothing for the architecture.
func (m *Memory) Learn(ctx context.Context, image, arch string, now time.Time) error {
	if len(Key(image)) > maxKey {
		return fmt.Errorf("fit: the name of image %.40s… is too long to be remembered; choose a node by kubernetes.io/arch", image)
	}
	return m.learn(ctx, map[string][]string{image: {arch}}, now)
}

// LearnOwner adds that the target refuses pods of the owner.
func (m *Memory) LearnOwner(ctx context.Context, owner types.UID, target string, now time.Time) error {
	return m.learn(ctx, map[string][]string{ofOwner + string(owner): {target}}, now)
}

// ofOwner is the prefix of entries for owners. No image name begins with it.
const ofOwner = "@owner/"

// learn is Learn for many images, by their names.
func (m *Memory) learn(ctx context.Context, lacks map[string][]string, now time.Time) error {
	return m.change(ctx, func(data map[string]string, since map[string]time.Time) {
		for image, lacking := range lacks {
			key := Key(image)
			archs := split(data[key])
			was := len(archs)
			for _, arch := range lacking {
				if !slices.Contains(archs, arch) {
					archs = append(archs, arch)
				}
			}
			if len(archs) == was && now.Sub(since[key]) < Life/2 {
				continue // repeated while its pods leave
			}
			slices.Sort(archs)
			data[key], since[key] = strings.Join(archs, ","), now.UTC().Truncate(time.Second)
		}
	}, now)
}

// Run removes old entries until ctx ends.
func (m *Memory) Run(ctx context.Context) error {
	for {
		_, err := m.client.CoreV1().ConfigMaps(Namespace).Get(ctx, Name, metav1.GetOptions{})
		if err == nil {
			err = m.change(ctx, func(map[string]string, map[string]time.Time) {}, time.Now())
		}
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			m.log.Debug("images that do not fit are not forgotten yet", "err", err)
		}
		if !changes.Wait(ctx, Life/6) {
			return ctx.Err()
		}
	}
}

// change writes the ConfigMap if edit changes anything.
func (m *Memory) change(ctx context.Context, edit func(data map[string]string, since map[string]time.Time), now time.Time) error {
	objects := m.client.CoreV1().ConfigMaps(Namespace)
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		have, err := objects.Get(ctx, Name, metav1.GetOptions{})
		fresh := apierrors.IsNotFound(err)
		if fresh {
			have = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name, Namespace: Namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "rivulet"}}}
		} else if err != nil {
			return err
		}
		data, since := map[string]string{}, map[string]time.Time{}
		maps.Copy(data, have.Data)
		_ = json.Unmarshal([]byte(have.Annotations[sinceAnnotation]), &since) // without a time they count as old
		edit(data, since)
		forget(data, since, now)
		text, err := json.Marshal(since)
		if err != nil {
			return err
		}
		if !fresh && maps.Equal(data, have.Data) && string(text) == have.Annotations[sinceAnnotation] {
			return nil
		}
		have.Data = data
		if have.Annotations == nil {
			have.Annotations = map[string]string{}
		}
		have.Annotations[sinceAnnotation] = string(text)
		if fresh {
			_, err = objects.Create(ctx, have, metav1.CreateOptions{FieldManager: policy.FieldManager})
		} else {
			_, err = objects.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("fit: ConfigMap %s: %w", Name, err)
	}
	return nil
}

// KeptOff returns, by the data of the ConfigMap, the architectures that images of the pod lack, with one such image, and
// the targets that refuse pods of its owners. It is what the admission policy reads.
func KeptOff(data map[string]string, p *corev1.Pod) (images map[string]string, targets []string) {
	if len(data) == 0 {
		return nil, nil
	}
	images = map[string]string{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, arch := range split(data[Key(list[i].Image)]) {
				images[arch] = list[i].Image
			}
		}
	}
	for _, owner := range p.OwnerReferences {
		targets = append(targets, split(data[Key(ofOwner+string(owner.UID))])...)
	}
	return images, targets
}

// Known returns the data of the ConfigMap.
func (m *Memory) Known(ctx context.Context) (map[string]string, error) {
	have, err := m.client.CoreV1().ConfigMaps(Namespace).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("fit: ConfigMap %s: %w", Name, err)
	}
	return have.Data, nil
}

func split(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}

// forget drops old entries, and the oldest above the bound.
func forget(data map[string]string, since map[string]time.Time, now time.Time) {
	keys := slices.SortedFunc(maps.Keys(data), func(a, b string) int {
		if c := since[b].Compare(since[a]); c != 0 {
			return c // newest first
		}
		return strings.Compare(a, b)
	})
	for i, key := range keys {
		if age := now.Sub(since[key]); i >= most || age > Life || age < -Life {
			delete(data, key)
		}
	}
	for key := range since {
		if _, kept := data[key]; !kept {
			delete(since, key)
		}
	}
}

// Keeps reports whether the API server already keeps new pods of the namespace with the image off the architecture: a
// policy's parameter takes effect shortly after it is written.
func (m *Memory) Keeps(ctx context.Context, namespace, image, arch string) (bool, error) {
	got, err := m.probe(ctx, namespace, image)
	if err != nil {
		return false, fmt.Errorf("fit: is image %s kept off %s: %w", image, arch, err)
	}
	return Avoids(got, arch), nil
}

// KeepsOwner is Keeps for an owner and a target.
func (m *Memory) KeepsOwner(ctx context.Context, namespace string, owner metav1.OwnerReference, target string) (bool, error) {
	got, err := m.probe(ctx, namespace, "rivulet.dev/probe", owner)
	if err != nil {
		return false, fmt.Errorf("fit: are pods of %s %s kept off %s: %w", owner.Kind, owner.Name, target, err)
	}
	return avoids(got, policy.TargetLabel, target), nil
}

// probe creates a pod by a dry run and returns what admission makes of it.
func (m *Memory) probe(ctx context.Context, namespace, image string, owners ...metav1.OwnerReference) (*corev1.Pod, error) {
	return m.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "rivulet-probe-", Namespace: namespace, OwnerReferences: owners},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// Avoids reports whether the pod's affinity excludes all nodes of the architecture.
func Avoids(p *corev1.Pod, arch string) bool { return avoids(p, corev1.LabelArchStable, arch) }

func avoids(p *corev1.Pod, key, value string) bool {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == key && r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, value)
		})
	})
}
