package twin

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// maxLinks bounds the variables of Services, in bytes: a provider refuses ConfigMaps above a size.
const maxLinks = 512 << 10

// links are the variables last written into a twin.
type links struct {
	mu   sync.Mutex
	data map[string]string
	at   time.Time
}

// PutServices writes the variables of home's Services, listed by list, unless they are there; afresh skips the memory of
// the last write. tooMany is not zero if they are too large to be written.
func (t *Twin) PutServices(ctx context.Context, afresh bool, list func() (*corev1.ServiceList, error)) (tooMany int, err error) {
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	services, err := list()
	if err != nil {
		return 0, fmt.Errorf("offload: the Services of the pod: %w", err)
	}
	data, size := translate.ServiceLinks(services.Items), 0
	for name, value := range data {
		size += len(name) + len(value)
	}
	if size > maxLinks {
		return len(services.Items), nil
	}
	if !afresh && time.Since(t.links.at) < addressAge && maps.Equal(t.links.data, data) {
		return 0, nil
	}
	all := t.client.CoreV1().ConfigMaps(t.Name)
	have, err := all.Get(ctx, translate.ServicesMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, &corev1.ConfigMap{Data: data, ObjectMeta: metav1.ObjectMeta{Name: translate.ServicesMap,
			Labels: map[string]string{policy.OriginLabel: t.cluster}}}, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err != nil:
	case have.Labels[policy.ReflectedLabel] != "":
		return 0, fmt.Errorf("offload: ConfigMap %s in %s has a name that is Rivulet's own; rename it", translate.ServicesMap, t.Home)
	case !maps.Equal(have.Data, data):
		have.Data = data
		_, err = all.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return 0, fmt.Errorf("offload: the variables of Services in the twin: %w", err)
	}
	t.links.data, t.links.at = data, time.Now()
	return 0, nil
}
