//! The way to the API server: as kubectl finds it.

use std::path::PathBuf;

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::CtlError;

/// Which cluster, and which namespace.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// Kubeconfig to use, in place of $KUBECONFIG and ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, in place of the current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Namespace, in place of the context's.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
}

impl Connection {
    /// A client, and the namespace to work in.
    pub async fn open(&self) -> Result<(Client, String), CtlError> {
        let config = self.config().await?;
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| CtlError::Connection(Box::new(error)))?;
        Ok((client, namespace))
    }

    async fn config(&self) -> Result<Config, CtlError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        if let Some(file) = &self.kubeconfig {
            let kubeconfig =
                Kubeconfig::read_from(file).map_err(|error| CtlError::Connection(Box::new(error)))?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            return config.map_err(|error| CtlError::Connection(Box::new(error)));
        }
        if self.context.is_some() {
            let config = Config::from_kubeconfig(&options).await;
            return config.map_err(|error| CtlError::Connection(Box::new(error)));
        }
        Config::infer()
            .await
            .map_err(|error| CtlError::Connection(Box::new(error)))
    }
}
