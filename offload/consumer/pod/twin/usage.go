package twin

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"rivulet/offload/policy"
)

// Metrics reads the usage of the twin's pods.
func (t *Twin) Metrics(ctx context.Context, cluster string) ([]v1beta1.PodMetrics, error) {
	raw, err := t.client.Discovery().RESTClient().Get().
		AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/"+t.Name+"/pods").
		Param("labelSelector", policy.OriginLabel+"="+cluster).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("offload: what pods in %s use: %w", t.Name, err)
	}
	var list v1beta1.PodMetricsList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("offload: what pods in %s use: %w; are the versions too far apart?", t.Name, err)
	}
	return list.Items, nil
}
