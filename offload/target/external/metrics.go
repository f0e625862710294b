package external

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
)

const metricsTimeout = 3 * time.Second

// unmeasured is why kubectl top, and autoscaling, do not work for pods there; empty if they do.
func unmeasured(ctx context.Context, client kubernetes.Interface, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout) // a failure here must not count as an unreachable campus
	defer cancel()
	_, err := client.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods").Param("limit", "1").DoRaw(ctx)
	switch {
	case err == nil:
		return ""
	case apierrors.IsForbidden(err):
		return "this user may not list pods.metrics.k8s.io; see the Role that rivulet burst check prints"
	case apierrors.IsNotFound(err):
		return "the cluster serves no resource metrics (metrics.k8s.io); its administrator would have to install a metrics-server"
	}
	return fmt.Sprintf("the cluster's resource metrics do not answer: %v; tell its administrator", err)
}
