package resourcemetrics

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The discovery documents of this API.
var (
	apiGroup = metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: group,
		Versions:         []metav1.GroupVersionForDiscovery{{GroupVersion: group + "/" + version, Version: version}},
		PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version},
	}
	groups = metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"},
		Groups:   []metav1.APIGroup{apiGroup},
	}
	resources = metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: group + "/" + version,
		APIResources: []metav1.APIResource{
			{Name: kindNodes, Kind: "NodeMetrics", Verbs: []string{"get", "list"}},
			{Name: kindPods, Kind: "PodMetrics", Namespaced: true, Verbs: []string{"get", "list"}},
		},
	}
)
