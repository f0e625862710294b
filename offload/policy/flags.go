package policy

import "strings"

// JWKS is the address of the service account keys in OIDC discovery. The default is the server's own address, which
// offloaded pods cannot reach; this name is the issuer's, and leads to this API server from every pod of the cluster,
// at home and away (offload/homeapi).
const JWKS = "https://kubernetes.default.svc.cluster.local/openid/v1/jwks"

// APIServerArgs lists the arguments of kube-apiserver on which offloading rests, without leading dashes.
func APIServerArgs() []string {
	return []string{
		"feature-gates=" + strings.Join([]string{
			// Admission for offloaded namespaces is CEL in the API server (beta in 1.35).
			"MutatingAdmissionPolicy=true",
			// It is a lease, renewed every 10 s, for other API servers; there are none.
			"APIServerIdentity=false",
			// It lists keys of the datastore to estimate sizes; kine answers with errors, logged each time.
			"SizeBasedListCostEstimate=false",
		}, ","),
		"runtime-config=admissionregistration.k8s.io/v1beta1=true",
		"service-account-jwks-uri=" + JWKS,
	}
}

// ControllerArgs lists the arguments of kube-controller-manager on which the first pod of a start waits.
func ControllerArgs() []string {
	return []string{
		// At its start each of about forty controllers requests an account and a token, one after the other. Upstream's
		// limit of 20 requests per second delays the default service account, and so the first pod, by seconds. The API
		// server is in this process.
		"kube-api-qps=200", "kube-api-burst=400",
	}
}
