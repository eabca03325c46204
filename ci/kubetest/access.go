package kubetest

import (
	"context"
	"fmt"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ServiceAccount gives the configuration of a service account, made if it is missing, with a token that the server
// itself issued. The account may do what RBAC grants it.
func (s *Server) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		return nil, err
	}
	accounts := client.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create service account: %w", err)
	}
	token, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token: %w", err)
	}
	config := s.anonymous()
	config.BearerToken = token.Status.Token
	return config, nil
}

// WriteKubeconfig writes what config says to a kubeconfig file that stands alone: certificates are put into it.
func WriteKubeconfig(path string, config *rest.Config, namespace string) error {
	const name = "kubetest"
	c := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server = config.Host
	user := clientcmdapi.NewAuthInfo()
	user.Token = config.BearerToken
	var err error
	for _, f := range []struct {
		to   *[]byte
		path string
	}{
		{&cluster.CertificateAuthorityData, config.CAFile},
		{&user.ClientCertificateData, config.CertFile},
		{&user.ClientKeyData, config.KeyFile},
	} {
		if f.path == "" {
			continue
		}
		if *f.to, err = os.ReadFile(f.path); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	c.Clusters[name], c.AuthInfos[name] = cluster, user
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	c.CurrentContext = name
	return clientcmd.WriteToFile(*c, path)
}
